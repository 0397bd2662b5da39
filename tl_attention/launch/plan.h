/* A plan, as `launcher.py` writes it: one row of int64, which is read once and never changes.

Every number is checked when it is read, so that a launch need not. */

#ifndef PLAN_H
#define PLAN_H

#include <stdint.h>

enum { DEVICES = 32, ARGUMENTS = 32, SIZES = 48, MAPS = 8, KERNELS = 4, PARAMETERS = 48, RANK = 5, STACK = 16 };

/* Kinds of arguments, what a parameter of a kernel is, what is read of an argument, and operations of expressions,
numbered as in `launcher.py`. */
enum { TENSOR, INT32, FLOAT32 };
enum { OF_ARGUMENT, OF_SIZE, OF_MAP };
enum { LENGTH, STRIDE, VALUE };
enum { NUMBER, SIZE, ADD, SUBTRACT, MULTIPLY, DIVIDE, MODULO };

/* Steps of a stack machine, each an operation and its operand: integer arithmetic over sizes, never negative. */
typedef struct {
    int64_t count;
    const int64_t *steps;
} Expression;

typedef struct {
    int64_t kind;
    int64_t code, bits; /* of DLPack's type, for a tensor, as is all that follows */
    int64_t strided;    /* 1: only the last dimension need be contiguous */
    int64_t ndim;
    Expression shape[RANK];
} Argument;

/* What is read at a launch: off an axis of a tensor its size, or its stride in elements; or an integer itself. */
typedef struct {
    int64_t what, argument, axis;
} Size;

/* The arguments of cuTensorMapEncodeTiled, innermost dimension first; strides are in bytes, without the innermost. */
typedef struct {
    int64_t argument, dtype, rank;
    Expression dims[RANK], strides[RANK];
    uint32_t box[RANK], element_strides[RANK];
    int64_t options[4]; /* interleaving, swizzle, L2 promotion, fill */
} Map;

typedef struct {
    const char *name;
    int64_t count;
    struct {
        int64_t what, number;
    } parameters[PARAMETERS];
    Expression grid[3];
    uint32_t block[3], cluster[3];
    int64_t shared_bytes;
    int64_t early; /* 1: it may begin before what is queued before it has ended, as it waits for that itself */
} Kernel;

static int has_cluster(const Kernel *kernel)
{
    return kernel->cluster[0] * kernel->cluster[1] * kernel->cluster[2] > 1;
}

typedef struct {
    int64_t argument_count, size_count, map_count, kernel_count;
    Argument arguments[ARGUMENTS];
    Size sizes[SIZES];
    Map maps[MAPS];
    Kernel kernels[KERNELS];
} Plan;

typedef struct {
    const int64_t *next, *end;
    int bad; /* 1 from the first number on that cannot stand where it does */
} Reader;

static int64_t read_number(Reader *reader, int64_t least, int64_t most)
{
    if (reader->bad || reader->next == reader->end || *reader->next < least || *reader->next > most) {
        reader->bad = 1;
        return least;
    }
    return *reader->next++;
}

static Expression read_expression(Reader *reader, int64_t size_count)
{
    Expression read = {read_number(reader, 1, 256), reader->next};
    int depth = 0;
    for (int64_t i = 0; i < read.count && !reader->bad; i++) {
        int64_t operation = read_number(reader, NUMBER, MODULO);
        read_number(reader, 0, operation == NUMBER ? INT64_MAX : operation == SIZE ? size_count - 1 : 0);
        depth += operation <= SIZE ? 1 : -1;
        reader->bad |= depth < 1 || depth > STACK;
    }
    reader->bad |= depth != 1;
    return read;
}

static void read_row(Reader *reader, uint32_t *numbers, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        numbers[i] = (uint32_t)read_number(reader, 1, UINT32_MAX);
}

static void read_argument(Reader *reader, const Plan *plan, Argument *argument)
{
    argument->kind = read_number(reader, TENSOR, FLOAT32);
    if (argument->kind != TENSOR)
        return;
    argument->code = read_number(reader, 0, UINT8_MAX);
    argument->bits = read_number(reader, 8, UINT8_MAX);
    argument->strided = read_number(reader, 0, 1);
    argument->ndim = read_number(reader, 1, RANK);
    for (int64_t axis = 0; axis < argument->ndim; axis++)
        argument->shape[axis] = read_expression(reader, plan->size_count);
}

static int64_t read_tensor(Reader *reader, const Plan *plan)
{
    int64_t argument = read_number(reader, 0, plan->argument_count - 1);
    reader->bad |= plan->arguments[argument].kind != TENSOR;
    return argument;
}

static void read_map(Reader *reader, const Plan *plan, Map *map)
{
    map->argument = read_tensor(reader, plan);
    map->dtype = read_number(reader, 0, INT32_MAX);
    map->rank = read_number(reader, 1, RANK);
    for (int64_t axis = 0; axis < map->rank; axis++)
        map->dims[axis] = read_expression(reader, plan->size_count);
    for (int64_t axis = 0; axis < map->rank - 1; axis++)
        map->strides[axis] = read_expression(reader, plan->size_count);
    read_row(reader, map->box, map->rank);
    read_row(reader, map->element_strides, map->rank);
    for (int option = 0; option < 4; option++)
        map->options[option] = read_number(reader, 0, INT32_MAX);
}

static void read_kernel(Reader *reader, const Plan *plan, Kernel *kernel)
{
    int64_t counts[] = {plan->argument_count, plan->size_count, plan->map_count};
    kernel->count = read_number(reader, 1, PARAMETERS);
    for (int64_t i = 0; i < kernel->count; i++) {
        kernel->parameters[i].what = read_number(reader, OF_ARGUMENT, OF_MAP);
        kernel->parameters[i].number = read_number(reader, 0, counts[kernel->parameters[i].what] - 1);
    }
    for (int axis = 0; axis < 3; axis++)
        kernel->grid[axis] = read_expression(reader, plan->size_count);
    read_row(reader, kernel->block, 3);
    read_row(reader, kernel->cluster, 3);
    kernel->shared_bytes = read_number(reader, 0, INT32_MAX);
    kernel->early = read_number(reader, 0, 1);
}

/* Returns 1 if the numbers are a plan, whose expressions go on to point at them. */
static int read_plan(Plan *plan, const int64_t *numbers, int64_t count)
{
    Reader reader = {numbers, numbers + count, 0};
    plan->argument_count = read_number(&reader, 1, ARGUMENTS);
    plan->size_count = read_number(&reader, 0, SIZES);
    plan->map_count = read_number(&reader, 0, MAPS);
    plan->kernel_count = read_number(&reader, 1, KERNELS);
    for (int64_t i = 0; i < plan->argument_count; i++)
        read_argument(&reader, plan, &plan->arguments[i]);
    for (int64_t i = 0; i < plan->size_count; i++) {
        Size *size = &plan->sizes[i];
        size->what = read_number(&reader, LENGTH, VALUE);
        size->argument = read_number(&reader, 0, plan->argument_count - 1);
        const Argument *argument = &plan->arguments[size->argument];
        reader.bad |= argument->kind != (size->what == VALUE ? INT32 : TENSOR);
        size->axis = read_number(&reader, 0, size->what == VALUE ? 0 : argument->ndim - 1);
    }
    for (int64_t i = 0; i < plan->map_count; i++)
        read_map(&reader, plan, &plan->maps[i]);
    for (int64_t i = 0; i < plan->kernel_count; i++)
        read_kernel(&reader, plan, &plan->kernels[i]);
    return !reader.bad && reader.next == reader.end;
}

/* Returns an expression's value, or a negative number after a division by 0. */
static int64_t value_of(const Expression *expression, const int64_t *sizes)
{
    int64_t stack[STACK];
    int depth = 0;
    for (int64_t i = 0; i < expression->count; i++) {
        int64_t operation = expression->steps[2 * i], operand = expression->steps[2 * i + 1];
        if (operation <= SIZE) {
            stack[depth++] = operation == SIZE ? sizes[operand] : operand;
            continue;
        }
        int64_t right = stack[--depth], *left = &stack[depth - 1];
        if (operation == ADD)
            *left += right;
        else if (operation == SUBTRACT)
            *left -= right;
        else if (operation == MULTIPLY)
            *left *= right;
        else if (right == 0)
            return INT64_MIN;
        else
            *left = operation == DIVIDE ? *left / right : *left % right;
    }
    return stack[0];
}

#endif
