// 2^x on the FMA units: 2^floor(x) p(x - floor(x)), where POLYNOMIAL stands for p of the fraction. x below -127 counts as
// -127.

__device__ __forceinline__ float tl_attention_exp2(float x) {
  x = fmaxf(x, -127.0f);
  const float whole = floorf(x), fraction = x - whole;
  const float power = POLYNOMIAL;
  return __int_as_float(__float_as_int(power) + ((int)whole << 23));
}
