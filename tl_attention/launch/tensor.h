/* Tensors as torch gives them by DLPack, without a call of Python code. */

#ifndef TENSOR_H
#define TENSOR_H

#include <Python.h>
#include <stdint.h>

enum { DL_MAJOR = 1, DL_CUDA = 2, KNOWN_TYPES = 4 };

/* DLTensor */
typedef struct {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Tensor;

/* DLPackExchangeAPI; functions return 0, or -1 with an error set. */
typedef struct {
    struct {
        uint32_t major, minor;
    } version;
    void *previous, *allocate, *export, *import;
    int (*view)(void *object, Tensor *out);
    int (*stream)(int32_t device_type, int32_t device, void **out);
} Exchange;

/* What was found of types of tensors: torch.Tensor, and perhaps its subclasses. */
static struct {
    PyObject *type;
    const Exchange *exchange;
} known[KNOWN_TYPES];
static int newest;

static const Exchange *exchange_of(PyObject *object)
{
    PyObject *type = (PyObject *)Py_TYPE(object);
    for (int i = 0; i < KNOWN_TYPES; i++)
        if (known[i].type == type)
            return known[i].exchange;
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    if (!capsule) {
        PyErr_Format(PyExc_TypeError, "attention: %R is no tensor", object);
        return NULL;
    }
    const Exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule);
    if (exchange && exchange->version.major != DL_MAJOR) {
        PyErr_Format(PyExc_TypeError, "attention: DLPack %u, expected %d", exchange->version.major, DL_MAJOR);
        return NULL;
    }
    if (exchange) {
        newest = (newest + 1) % KNOWN_TYPES;
        Py_XDECREF(known[newest].type);
        Py_INCREF(type);
        known[newest].type = type;
        known[newest].exchange = exchange;
    }
    return exchange;
}

#endif
