/* Stands in for CUDA's driver and runtime where kernels are launched: every call succeeds, and is written to a file.

A descriptor is the arguments that it was made of, so a launch's arguments, as bytes, tell of its descriptors too. */

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { KERNELS = 16, PARAMETERS = 64 };

typedef struct { int id; char pad[4]; unsigned char value[64]; } Attribute;
typedef struct {
    uint32_t shape[6], shared_bytes;
    void *stream;
    Attribute *attributes;
    uint32_t count;
} Config;
typedef struct {
    uint64_t address, dims[5], strides[4];
    uint32_t box[5], element_strides[5];
    uint8_t dtype, rank, options[4];
} Map;

static struct { char name[64]; int count, bytes[PARAMETERS]; } kernels[KERNELS];
static int known;
static FILE *file;
static int context = 1;
static char failing[64];

/* Has one function fail from now on. */
void fail(const char *function) { snprintf(failing, sizeof failing, "%s", function); }

/* Begins a record, of launches of no kernel yet. */
void record_to(const char *path)
{
    if (file)
        fclose(file);
    file = fopen(path, "w");
    known = 0;
}

/* Says how many bytes each parameter of a kernel has. */
void expect(const char *name, int count, const int *bytes)
{
    snprintf(kernels[known].name, sizeof kernels[known].name, "%s", name);
    kernels[known].count = count;
    memcpy(kernels[known++].bytes, bytes, sizeof(int) * (size_t)count);
}

static void hex(const void *from, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fprintf(file, "%02x", ((const unsigned char *)from)[i]);
    fputc(' ', file);
}

int cuDriverGetVersion(int *version) { return *version = strcmp(failing, __func__) ? 13000 : 12080, 0; }
int cuCtxGetDevice(int *device) { return *device = 0, !context; }
int cuDevicePrimaryCtxRetain(void **found, int device) { return *found = &context, device != 0; }
int cuCtxSetCurrent(void *given) { return context = 1, given != &context; }
int cuModuleLoadData(void **module, const void *code) { return *module = (void *)code, !strcmp(failing, __func__); }
int cuModuleUnload(void *module) { return !module; }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    for (int i = 0; i < known; i++)
        if (!strcmp(name, kernels[i].name))
            return *function = &kernels[i], 0;
    return 500;
}
int cuFuncSetAttribute(void *function, int attribute, int value)
{
    return fprintf(file, "attribute %s %d %d\n", (char *)function, attribute, value), fflush(file);
}
int cuTensorMapEncodeTiled(void *map, int dtype, uint32_t rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides, int interleave,
                           int swizzle, int promotion, int fill)
{
    Map made = {.address = (uint64_t)address, .dtype = (uint8_t)dtype, .rank = (uint8_t)rank,
                .options = {(uint8_t)interleave, (uint8_t)swizzle, (uint8_t)promotion, (uint8_t)fill}};
    memcpy(made.dims, dims, 8 * rank);
    memcpy(made.strides, strides, 8 * (rank - 1));
    memcpy(made.box, box, 4 * rank);
    memcpy(made.element_strides, element_strides, 4 * rank);
    memset(map, 0, 128);
    memcpy(map, &made, sizeof made);
    return (uint64_t)map % 64 || !strcmp(failing, __func__);
}
int cuLaunchKernelEx(const Config *config, void *function, void **arguments, void **extra)
{
    int of = 0;
    while ((void *)&kernels[of] != function)
        of++;
    fprintf(file, "launch %s shape ", kernels[of].name);
    for (int i = 0; i < 6; i++)
        fprintf(file, "%u ", config->shape[i]);
    fprintf(file, "shared %u stream %p ", config->shared_bytes, config->stream);
    for (uint32_t i = 0; i < config->count; i++) {
        fprintf(file, "attribute %d ", config->attributes[i].id);
        hex(config->attributes[i].value, 64);
    }
    fprintf(file, "arguments ");
    for (int i = 0; i < kernels[of].count; i++)
        hex(arguments[i], kernels[of].bytes[i]);
    fputc('\n', file);
    return fflush(file) || extra || !strcmp(failing, "cuLaunchKernelEx");
}
int cuLaunchKernel(void *function, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z, uint32_t block_x, uint32_t block_y,
                   uint32_t block_z, uint32_t shared_bytes, void *stream, void **arguments, void **extra)
{
    Config config = {{grid_x, grid_y, grid_z, block_x, block_y, block_z}, shared_bytes, stream, NULL, 0};
    return cuLaunchKernelEx(&config, function, arguments, extra);
}
int cuGetErrorName(int error, const char **name) { return *name = "CUDA_ERROR_STAND_IN", error < 0; }
int cuGetErrorString(int error, const char **name) { return *name = "an error", error < 0; }

int cudaSetDevice(int device) { return device != 0; }
int cudaGetDevice(int *device) { return *device = 0; }
int cudaGetDeviceCount(int *count) { return *count = 1, 0; }
int cudaPeekAtLastError(void) { return 0; }
int cudaGetLastError(void) { return 0; }
