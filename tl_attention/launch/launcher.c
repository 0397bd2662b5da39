/* Launches kernels by the CUDA driver as their plans say.

A launch checks its arguments, reads sizes off its tensors, makes the TMA descriptors and launches the plan's kernels in
order, on torch's current stream of the tensors' device. Nothing here is particular to attention.

It is written against CPython's limited API, so that one file serves Python 3.11 and later, and links libc alone:
`launcher.py` finds the driver and hands over its functions. Layouts are those of dlpack.h 1.3 and of cuda.h 12.0. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "tensor.h"

/* --- the driver -------------------------------------------------------------------------------------------------- */

enum { MAX_DYNAMIC_SHARED_BYTES = 8, NON_PORTABLE_CLUSTER_ALLOWED = 14 };     /* CUfunction_attribute */
enum { CLUSTER_DIMENSION = 4, PROGRAMMATIC_STREAM_SERIALIZATION = 6 };        /* CUlaunchAttributeID */
enum { MAP_BYTES = 128, MAP_ALIGNMENT = 64 };                                 /* CUtensorMap */
enum { ALIGNMENT = 16 };                                                      /* of strides, in bytes, for TMA too */

/* CUlaunchAttribute */
typedef struct {
    int32_t id, padding;
    union {
        uint32_t cluster[3];
        int32_t allowed;
        char bytes[64];
    } value;
} Attribute;

/* CUlaunchConfig */
typedef struct {
    uint32_t grid[3], block[3], shared_bytes;
    void *stream;
    Attribute *attributes;
    uint32_t attribute_count;
} Config;

/* In the order of DRIVER in `launcher.py`; they return 0, or the number of an error. */
static struct {
    int (*context_device)(int *device);
    int (*retain_primary)(void **context, int device);
    int (*make_current)(void *context);
    int (*load_module)(void **module, const void *code);
    int (*unload_module)(void *module);
    int (*find_function)(void **function, void *module, const char *name);
    int (*set_attribute)(void *function, int attribute, int value);
    int (*encode_map)(void *map, int dtype, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides,
                      const uint32_t *box, const uint32_t *element_strides, int interleave, int swizzle, int promotion,
                      int fill);
    int (*launch)(const Config *config, void *function, void **arguments, void **extra);
    int (*error_name)(int error, const char **name);
} driver;

static int failed(const char *what, int error)
{
    const char *name = NULL;
    if (driver.error_name(error, &name) || !name)
        name = "unknown error";
    PyErr_Format(PyExc_RuntimeError, "attention: %s: %s (%d)", what, name, error);
    return -1;
}

/* --- kernels ----------------------------------------------------------------------------------------------------- */

/* A plan with its machine code, and what the driver made of this for each device. */
typedef struct {
    Plan plan;
    PyObject *names, *kernel_names, *numbers, *code;
    void *contexts[DEVICES], *modules[DEVICES], *functions[DEVICES][KERNELS];
} Loaded;

/* What a kernel takes for an argument. */
typedef union {
    void *pointer;
    int32_t integer;
    float number;
} Value;

static int refuse(const Loaded *loaded, int64_t argument, const char *what, int64_t found, int64_t expected)
{
    PyErr_Format(PyExc_ValueError, "attention: %S has %s %lld, expected %lld",
                 PyTuple_GetItem(loaded->names, (Py_ssize_t)argument), what, (long long)found, (long long)expected);
    return -1;
}

/* Of a tensor with one dimension more than the plan's the first two are read as one: pages of rows are rows. */
static int fold(const Loaded *loaded, int64_t number, Tensor *view, int64_t *folded)
{
    int64_t count = view->shape[0], size = view->shape[1], first = view->strides[0];
    int64_t row = size == 1 ? first : view->strides[1], *strides = folded + RANK;
    if (count > 1 && (row < 1 || first < row || first % row))
        return refuse(loaded, number, "a stride of pages, modulo that of rows,", row < 1 ? row : first % row, 0);
    folded[0] = count > 1 ? (count - 1) * (first / row) + size : count * size;
    strides[0] = row;
    view->ndim -= 1;
    for (int axis = 1; axis < view->ndim; axis++) {
        folded[axis] = view->shape[axis + 1];
        strides[axis] = view->strides[axis + 1];
    }
    view->shape = folded;
    view->strides = strides;
    return 0;
}

/* Reads an argument; returns 0, or -1 with an error set. */
static int take(const Loaded *loaded, int64_t number, PyObject *given, Value *value, Tensor *view, int64_t *folded,
                const Exchange **exchange)
{
    const Argument *argument = &loaded->plan.arguments[number];
    if (argument->kind == FLOAT32) {
        double found = PyFloat_AsDouble(given);
        value->number = (float)found;
        return found == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (argument->kind == INT32) {
        long long found = PyLong_AsLongLong(given);
        if (found == -1 && PyErr_Occurred())
            return -1;
        value->integer = (int32_t)found;
        return found == value->integer ? 0 : refuse(loaded, number, "a number of more than 32 bits,", found, value->integer);
    }
    *exchange = exchange_of(given);
    if (!*exchange || (*exchange)->view(given, view))
        return -1;
    if (view->device.type != DL_CUDA)
        return refuse(loaded, number, "DLPack device type", view->device.type, DL_CUDA);
    if (view->dtype.code != argument->code || view->dtype.lanes != 1)
        return refuse(loaded, number, "DLPack data type", view->dtype.code, argument->code);
    if (view->dtype.bits != argument->bits)
        return refuse(loaded, number, "bits", view->dtype.bits, argument->bits);
    if (view->ndim == argument->ndim + 1 && view->ndim <= RANK && fold(loaded, number, view, folded))
        return -1;
    if (view->ndim != argument->ndim)
        return refuse(loaded, number, "dimensions", view->ndim, argument->ndim);
    value->pointer = (char *)view->data + view->byte_offset;
    return 0;
}

/* Holds a tensor to the plan's shape, to the device, and to elements that lie as the kernels read them. */
static int check(const Loaded *loaded, int64_t number, const Tensor *view, const int64_t *sizes, int32_t device)
{
    const Argument *argument = &loaded->plan.arguments[number];
    int64_t contiguous = 1;
    if (view->device.id != device)
        return refuse(loaded, number, "device", view->device.id, device);
    for (int64_t axis = argument->ndim - 1; axis >= 0; axis--) {
        int64_t length = view->shape[axis], expected = value_of(&argument->shape[axis], sizes);
        int free = argument->strided && axis < argument->ndim - 1;
        if (length != expected)
            return refuse(loaded, number, "size", length, expected);
        if (length > 1 && !free && view->strides[axis] != contiguous)
            return refuse(loaded, number, "stride", view->strides[axis], contiguous);
        /* Kernels load and store 16 bytes at a time. */
        if (free && view->strides[axis] * argument->bits / 8 % ALIGNMENT)
            return refuse(loaded, number, "a stride in bytes, modulo 16,",
                          view->strides[axis] * argument->bits / 8 % ALIGNMENT, 0);
        contiguous *= length;
    }
    return 0;
}

/* Makes the device's primary context current where the thread has none, or that of another device. */
static int enter(Loaded *loaded, int32_t device)
{
    void **context = &loaded->contexts[device];
    int current, error;
    if (driver.context_device(&current) == 0 && current == device)
        return 0;
    if (!*context && (error = driver.retain_primary(context, device)))
        return failed("cuDevicePrimaryCtxRetain", error);
    return (error = driver.make_current(*context)) ? failed("cuCtxSetCurrent", error) : 0;
}

/* Loads the machine code for a device. */
static int load(Loaded *loaded, int32_t device)
{
    void *module = NULL, *functions[KERNELS];
    const char *code = PyBytes_AsString(loaded->code), *what = "cuModuleLoadData";
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = driver.load_module(&module, code);
    for (int64_t i = 0; i < loaded->plan.kernel_count && !error; i++) {
        const Kernel *kernel = &loaded->plan.kernels[i];
        what = "cuModuleGetFunction";
        error = driver.find_function(&functions[i], module, kernel->name);
        if (!error && kernel->shared_bytes) {
            what = "cuFuncSetAttribute of shared memory";
            error = driver.set_attribute(functions[i], MAX_DYNAMIC_SHARED_BYTES, (int)kernel->shared_bytes);
        }
        if (!error && has_cluster(kernel)) {
            what = "cuFuncSetAttribute of the cluster";
            error = driver.set_attribute(functions[i], NON_PORTABLE_CLUSTER_ALLOWED, 1);
        }
    }
    Py_END_ALLOW_THREADS
    if (error || loaded->modules[device]) { /* Another thread may have been first. */
        if (module)
            driver.unload_module(module);
        return error ? failed(what, error) : 0;
    }
    memcpy(loaded->functions[device], functions, sizeof functions);
    loaded->modules[device] = module;
    return 0;
}

static int encode(const Map *map, const Value *values, const int64_t *sizes, unsigned char *out)
{
    uint64_t dims[RANK], strides[RANK];
    for (int64_t axis = 0; axis < map->rank; axis++)
        dims[axis] = (uint64_t)value_of(&map->dims[axis], sizes);
    for (int64_t axis = 0; axis < map->rank - 1; axis++)
        strides[axis] = (uint64_t)value_of(&map->strides[axis], sizes);
    int error = driver.encode_map(out, (int)map->dtype, (uint32_t)map->rank, values[map->argument].pointer, dims, strides,
                                  map->box, map->element_strides, (int)map->options[0], (int)map->options[1],
                                  (int)map->options[2], (int)map->options[3]);
    return error ? failed("cuTensorMapEncodeTiled", error) : 0;
}

static int launch(const Kernel *kernel, void *function, void *stream, Value *values, int64_t *sizes,
                  unsigned char (*maps)[MAP_BYTES])
{
    void *parameters[PARAMETERS];
    Attribute attributes[2];
    Config config = {.shared_bytes = (uint32_t)kernel->shared_bytes, .stream = stream, .attributes = attributes};
    int error;
    for (int64_t i = 0; i < kernel->count; i++) {
        int64_t what = kernel->parameters[i].what, number = kernel->parameters[i].number;
        if (what == OF_ARGUMENT)
            parameters[i] = &values[number];
        else if (what == OF_MAP)
            parameters[i] = maps[number];
        else /* Where a kernel takes 32 bits, they are the first of the 64: these machines are little-endian. */
            parameters[i] = &sizes[number];
    }
    for (int axis = 0; axis < 3; axis++) {
        int64_t blocks = value_of(&kernel->grid[axis], sizes);
        if (blocks < 1 || blocks > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "attention: %lld thread blocks, expected at least 1", (long long)blocks);
            return -1;
        }
        config.grid[axis] = (uint32_t)blocks;
        config.block[axis] = kernel->block[axis];
    }
    memset(attributes, 0, sizeof attributes);
    if (has_cluster(kernel)) {
        Attribute *attribute = &attributes[config.attribute_count++];
        attribute->id = CLUSTER_DIMENSION;
        memcpy(attribute->value.cluster, kernel->cluster, sizeof kernel->cluster);
    }
    if (kernel->early) {
        Attribute *attribute = &attributes[config.attribute_count++];
        attribute->id = PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute->value.allowed = 1;
    }
    /* Where the queue is full a launch waits, perhaps for a function of Python's. */
    Py_BEGIN_ALLOW_THREADS
    error = driver.launch(&config, function, parameters, NULL);
    Py_END_ALLOW_THREADS
    return error ? failed("cuLaunchKernelEx", error) : 0;
}

static const char CAPSULE[] = "tl_attention.launch";

static PyObject *call(PyObject *capsule, PyObject *const *given, Py_ssize_t count)
{
    Loaded *loaded = PyCapsule_GetPointer(capsule, CAPSULE);
    const Plan *plan = &loaded->plan;
    const Exchange *exchange = NULL;
    Value values[ARGUMENTS];
    Tensor views[ARGUMENTS];
    int64_t sizes[SIZES], folded[ARGUMENTS][2 * RANK];
    _Alignas(MAP_ALIGNMENT) unsigned char maps[MAPS][MAP_BYTES];
    void *stream;
    if (count != plan->argument_count)
        return PyErr_Format(PyExc_TypeError, "attention: a kernel takes %lld arguments, %zd were given",
                            (long long)plan->argument_count, count);
    for (int64_t i = 0; i < plan->argument_count; i++)
        if (take(loaded, i, given[i], &values[i], &views[i], folded[i], &exchange))
            return NULL;
    for (int64_t i = 0; i < plan->size_count; i++) {
        const Size *size = &plan->sizes[i];
        const Tensor *view = &views[size->argument];
        sizes[i] = size->what == VALUE ? values[size->argument].integer
                                       : (size->what == STRIDE ? view->strides : view->shape)[size->axis];
    }
    int32_t device = views[0].device.id;
    for (int64_t i = 0; i < plan->argument_count; i++)
        if (plan->arguments[i].kind == TENSOR && check(loaded, i, &views[i], sizes, device))
            return NULL;
    if (!driver.launch || device >= DEVICES)
        return PyErr_Format(PyExc_RuntimeError, "attention: no CUDA driver for device %d", device);
    if (exchange->stream(DL_CUDA, device, &stream) || enter(loaded, device))
        return NULL;
    if (!loaded->modules[device] && load(loaded, device))
        return NULL;
    for (int64_t i = 0; i < plan->map_count; i++)
        if (encode(&plan->maps[i], values, sizes, maps[i]))
            return NULL;
    for (int64_t i = 0; i < plan->kernel_count; i++)
        if (launch(&plan->kernels[i], loaded->functions[device][i], stream, values, sizes, maps))
            return NULL;
    Py_RETURN_NONE;
}

/* --- the module -------------------------------------------------------------------------------------------------- */

static void forget(PyObject *capsule)
{
    Loaded *loaded = PyCapsule_GetPointer(capsule, CAPSULE);
    for (int device = 0; device < DEVICES; device++)
        if (loaded->modules[device])
            driver.unload_module(loaded->modules[device]);
    Py_XDECREF(loaded->names);
    Py_XDECREF(loaded->kernel_names);
    Py_XDECREF(loaded->numbers);
    Py_XDECREF(loaded->code);
    free(loaded);
}

/* Fills what a plan is loaded from; returns 0, or -1 with an error set. */
static int fill(Loaded *loaded, PyObject *given)
{
    PyObject *names, *kernel_names, *numbers, *code;
    if (!PyArg_ParseTuple(given, "O!O!SS", &PyTuple_Type, &names, &PyTuple_Type, &kernel_names, &numbers, &code))
        return -1;
    Py_INCREF(loaded->names = names);
    Py_INCREF(loaded->kernel_names = kernel_names);
    Py_INCREF(loaded->numbers = numbers);
    Py_INCREF(loaded->code = code);
    int64_t count = (int64_t)(PyBytes_Size(numbers) / (Py_ssize_t)sizeof(int64_t));
    Plan *plan = &loaded->plan;
    if (!read_plan(plan, (const int64_t *)PyBytes_AsString(numbers), count) || plan->arguments[0].kind != TENSOR ||
        PyTuple_Size(names) != plan->argument_count || PyTuple_Size(kernel_names) != plan->kernel_count) {
        PyErr_SetString(PyExc_ValueError, "attention: these numbers are no plan's");
        return -1;
    }
    for (int64_t i = 0; i < plan->kernel_count; i++)
        if (!(plan->kernels[i].name = PyBytes_AsString(PyTuple_GetItem(kernel_names, (Py_ssize_t)i))))
            return -1;
    return 0;
}

static PyMethodDef CALL = {"attention", (PyCFunction)(void (*)(void))call, METH_FASTCALL, NULL};

static PyObject *function(PyObject *module, PyObject *given)
{
    Loaded *loaded = calloc(1, sizeof *loaded);
    PyObject *capsule = loaded ? PyCapsule_New(loaded, CAPSULE, forget) : PyErr_NoMemory(), *made = NULL;
    if (!capsule) {
        free(loaded);
        return NULL;
    }
    if (fill(loaded, given) == 0)
        made = PyCFunction_NewEx(&CALL, capsule, NULL);
    Py_DECREF(capsule);
    return made;
}

static PyObject *use_driver(PyObject *module, PyObject *addresses)
{
    char *found;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(addresses, &found, &size))
        return NULL;
    if (size != sizeof driver)
        return PyErr_Format(PyExc_ValueError, "attention: %zd bytes of addresses, expected %zd", size, sizeof driver);
    memcpy(&driver, found, sizeof driver);
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"function", function, METH_VARARGS,
     "function(names, kernel_names, numbers, code): returns a function that launches a plan's kernels."},
    {"use_driver", use_driver, METH_O, "use_driver(addresses): takes the driver's functions, as an array of pointers."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_launcher", "This module launches kernels by the CUDA driver.", -1, METHODS, NULL, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC PyInit__launcher(void) { return PyModule_Create(&MODULE); }
