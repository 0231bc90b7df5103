"""The compiled twin of kvfast/_core/objects.py, over Python's C functions.

In Cython's own language: Python has no word for a slot of a type or the memory of an array.
"""

cimport cython
from cpython cimport array
from cpython.buffer cimport (
    PyBUF_FULL_RO, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from libc.string cimport memcpy

from kvspec.arrays import delta_rows
from kvspec import batched
from kvspec.errors import InvalidArgumentError

cdef extern from "structmember.h":
    pass

cdef extern from "Python.h":
    object PyType_GenericNew(PyTypeObject *made, void *args, void *options)
    ctypedef struct MemberDefinition "PyMemberDef":
        Py_ssize_t offset
    ctypedef struct MemberDescriptor "PyMemberDescrObject":
        MemberDefinition *d_member
    Py_ssize_t Py_REFCNT(PyObject *value)
    Py_ssize_t Py_SIZE(PyObject *value)
    PyTypeObject *Py_TYPE(PyObject *value)
    void Py_XDECREF(PyObject *value)
    bint PyLong_CheckExact(PyObject *value)

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030C0000
    #define kvfast_small(value) (PyUnstable_Long_IsCompact((PyLongObject *)(value)) \\
        ? PyUnstable_Long_CompactValue((PyLongObject *)(value)) : -1)
    #else
    #define kvfast_small(value) ((size_t)Py_SIZE(value) > 1 ? -1 : Py_SIZE(value) == 0 ? 0 \\
        : (Py_ssize_t)((PyLongObject *)(value))->ob_digit[0])
    #endif
    #define kvfast_items(values) (((PyListObject *)(values))->ob_item)
    """
    PyObject **kvfast_items(list values)
    Py_ssize_t kvfast_small(PyObject *value)  # an int of one digit, or a negative number

# As C variables: a name of the module would be looked up each time.
cdef object StepOutput = batched.StepOutput
cdef object StepResult = batched.StepResult
cdef array.array one_long = array.array("q", [0])
cdef PyTypeObject *long_array = Py_TYPE(<PyObject *>one_long)
cdef array.array one_word = array.array("Q", [0])


cdef Py_ssize_t place_of(made, str field) except -1:
    """How many bytes into one of such objects its reference to the field is."""
    descriptor = vars(made)[field]
    return (<MemberDescriptor *>descriptor).d_member.offset


cdef Py_ssize_t at_scheduled = place_of(StepResult, "num_scheduled_tokens")
cdef Py_ssize_t at_hits = place_of(StepResult, "hit_tokens")
cdef Py_ssize_t at_slots = place_of(StepResult, "num_slots")
cdef Py_ssize_t at_deltas = place_of(StepResult, "num_deltas")
cdef Py_ssize_t at_left = place_of(StepResult, "num_deltas_left")
cdef Py_ssize_t at_block_deltas = place_of(StepOutput, "block_deltas")
cdef Py_ssize_t at_mappings = place_of(StepOutput, "slot_mappings")


@cython.final
cdef class Results:
    """See the twin. Two are kept: most callers have the last one until they get the next."""

    def __init__(self):
        self.start(0, 0)

    cdef int start(self, Py_ssize_t count, Py_ssize_t num_hits) except -1:
        made = self.older if is_free(<PyObject *>self.older, count, num_hits) else None
        self.older = self.latest
        self.latest = made
        if made is None:
            self.scheduled = array.clone(one_long, count, False)
            self.hits = array.clone(one_long, num_hits, False)
        else:
            self.scheduled = <object>place_in(made, at_scheduled)[0]
            self.hits = <object>place_in(made, at_hits)[0]
        fill(self.scheduled, 1)
        fill(self.hits, 0)
        return 0

    cdef object told(self, long long num_slots, long long num_deltas, long long num_left):
        if self.latest is None:  # as an object that is not frozen would be made
            self.latest = PyType_GenericNew(<PyTypeObject *>StepResult, NULL, NULL)
            refer(self.latest, at_scheduled, self.scheduled)
            refer(self.latest, at_hits, self.hits)
        count(self.latest, at_slots, num_slots)
        count(self.latest, at_deltas, num_deltas)
        count(self.latest, at_left, num_left)
        return self.latest


cdef inline PyObject **place_in(made, Py_ssize_t at) noexcept:
    """Where an object has its reference to a field; NULL is there as long as it has none."""
    return <PyObject **>(<char *><void *>made + at)


cdef inline bint is_free(PyObject *made, Py_ssize_t count, Py_ssize_t num_hits) noexcept:
    """Whether nobody could see a result change, nor its arrays, which are of these lengths."""
    if Py_REFCNT(made) != 1:
        return False
    return (
        are_free(place_in(<object>made, at_scheduled)[0], count)
        and are_free(place_in(<object>made, at_hits)[0], num_hits)
    )


cdef inline bint are_free(PyObject *values, Py_ssize_t count) noexcept:
    """`is_free` of one of its arrays."""
    if values is NULL or Py_REFCNT(values) != 1 or Py_TYPE(values) is not long_array:
        return False
    return (<array.array><object>values).ob_descr.typecode == c"q" and Py_SIZE(values) == count


cdef inline void refer(made, Py_ssize_t at, value) noexcept:
    cdef PyObject *old = place_in(made, at)[0]
    Py_INCREF(value)
    place_in(made, at)[0] = <PyObject *>value
    Py_XDECREF(old)


cdef inline int count(made, Py_ssize_t at, long long value) except -1:
    """`refer` to a number, unless that is there from the last time."""
    cdef PyObject *old = place_in(made, at)[0]
    if old is NULL or not PyLong_CheckExact(old) or kvfast_small(old) != value:
        refer(made, at, value)
    return 0


cdef inline void fill(values, long long value) noexcept:
    """Let all of an array of 64 bits be this."""
    cdef array.array given = <array.array>values
    cdef long long *data = given.data.as_longlongs
    cdef Py_ssize_t i
    for i in range(Py_SIZE(<PyObject *>values)):
        data[i] = value


cdef Py_ssize_t put_array(values, long long *to, Py_ssize_t at, Py_ssize_t end) noexcept:
    """See the twin. No other thread can change the array meanwhile."""
    cdef array.array given = <array.array>values
    cdef Py_ssize_t i, count = Py_SIZE(<PyObject *>values)
    if count > end - at:
        return -1
    if given.ob_descr.typecode == c"q":
        if count:
            memcpy(&to[at], given.data.as_longlongs, 8 * count)
        return count
    if given.ob_descr.typecode == c"i":
        for i in range(count):
            to[at + i] = given.data.as_ints[i]
        return count
    return -1


cdef Py_ssize_t small_of(value) noexcept:
    """See the twin."""
    return kvfast_small(<PyObject *>value) if PyLong_CheckExact(<PyObject *>value) else -1


cdef Py_ssize_t put_small(list values, long long *to, Py_ssize_t at) noexcept:
    """See the twin."""
    cdef PyObject **items = kvfast_items(values)  # read once, not once for each number written
    cdef Py_ssize_t i, small, count = len(values)
    for i in range(count):
        if not PyLong_CheckExact(items[i]):
            return i
        small = kvfast_small(items[i])
        if small < 0:
            return i
        to[at + i] = small
    return count


@cython.final
cdef class Rows:
    """See the twin. The buffer is held, or `release` could take the memory away meanwhile."""

    cdef int open(self, given) except -1:
        self.close()
        if type(given) is not memoryview or not hold(self, given):
            if not hold(self, delta_rows("block_deltas", given)):
                raise InvalidArgumentError("block_deltas", given, "the same each time it is read")
        return 0

    cdef int close(self) except -1:
        if self.is_open:
            self.is_open = False
            self.room = 0
            PyBuffer_Release(&self.buffer)
        return 0

    def __dealloc__(self):
        if self.is_open:
            PyBuffer_Release(&self.buffer)


cdef bint hold(Rows rows, given) except -1:
    """Hold the memory of a view, unless it is released or of another form."""
    try:
        PyObject_GetBuffer(given, &rows.buffer, PyBUF_FULL_RO)
    except (ValueError, BufferError):
        return False
    rows.is_open = True
    if are_rows(&rows.buffer):
        rows.room = rows.buffer.shape[0]
        return True
    rows.close()
    return False


cdef bint are_rows(Py_buffer *buffer) noexcept:
    """Whether they are writable rows of four ints of 32 bits, one behind the other."""
    if buffer.ndim != 2 or buffer.shape[1] != 4 or buffer.itemsize != 4 or buffer.readonly:
        return False
    if buffer.suboffsets is not NULL or buffer.strides[1] != 4 or buffer.strides[0] != 16:
        if not PyBuffer_IsContiguous(buffer, c"C"):  # of one row any stride is right
            return False
    form = buffer.format
    return form is not NULL and is_int(form + 1 if form[0] == c"@" else form)


cdef bint is_int(const char *form) noexcept:
    """Whether a form is that of an int which `itemsize` tells the width of."""
    return (form[0] == c"i" or form[0] == c"l") and form[1] == 0


cdef void put_rows(
    Rows rows, Py_ssize_t at, Py_ssize_t handle, int group, Py_ssize_t index,
    const int *arena, Py_ssize_t start, Py_ssize_t count
) noexcept nogil:
    """See the twin."""
    cdef int *row = <int *>rows.buffer.buf + 4 * at
    cdef Py_ssize_t i
    for i in range(index, index + count):
        row[0] = <int>handle
        row[1] = group
        row[2] = <int>i
        row[3] = arena[start + i]
        row += 4


cdef object deltas_of(output):
    """See the twin."""
    if type(output) is StepOutput:
        place = (<PyObject **>(<char *><void *>output + at_block_deltas))[0]
        if place is not NULL:
            return <object>place
    return output.block_deltas


cdef object mappings_of(output):
    """See the twin."""
    if type(output) is StepOutput:
        place = (<PyObject **>(<char *><void *>output + at_mappings))[0]
        if place is not NULL:
            return <object>place
    return output.slot_mappings


cdef long long[::1] longs(Py_ssize_t count):
    """See the twin."""
    return array.clone(one_long, count, False)


cdef unsigned long long[::1] words(Py_ssize_t count):
    """See the twin."""
    return array.clone(one_word, count, False)


cdef array.array word_array(Py_ssize_t count):
    """See the twin."""
    return array.clone(one_word, count, False)


cdef list pieces_of(const unsigned char *data, Py_ssize_t size, Py_ssize_t first, Py_ssize_t end):
    """See the twin."""
    cdef list pieces = PyList_New(end - first)
    cdef Py_ssize_t i
    for i in range(first, end):
        piece = PyBytes_FromStringAndSize(<const char *>data + i * size, size)
        Py_INCREF(piece)  # the list takes one over
        PyList_SET_ITEM(pieces, i - first, piece)
    return pieces
