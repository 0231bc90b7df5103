"""The compiled twin of kvfast/_core/objects.py, over Python's C functions.

In Cython's own language: Python has no word for a slot of a type or the memory of an array.
"""

from cpython cimport array
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.string cimport memcpy

from kvspec._arrays import delta_rows
from kvspec.batched import StepResult

cdef extern from "structmember.h":
    pass

cdef extern from "Python.h":
    object PyType_GenericNew(object made, void *args, void *options)
    ctypedef struct MemberDefinition "PyMemberDef":
        Py_ssize_t offset
    ctypedef struct MemberDescriptor "PyMemberDescrObject":
        MemberDefinition *d_member
    Py_buffer *PyMemoryView_GET_BUFFER(object view)
    PyObject *PyList_GET_ITEM(object values, Py_ssize_t i)
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
    """
    Py_ssize_t kvfast_small(PyObject *value)  # an int of one digit, or a negative number

cdef array.array one_long = array.array("q", [0])


cdef Py_ssize_t place_of(str field) except -1:
    """How many bytes into a StepResult its reference to the field is."""
    descriptor = vars(StepResult)[field]
    return (<MemberDescriptor *>descriptor).d_member.offset


cdef Py_ssize_t at_scheduled = place_of("num_scheduled_tokens")
cdef Py_ssize_t at_hits = place_of("hit_tokens")
cdef Py_ssize_t at_slots = place_of("num_slots")
cdef Py_ssize_t at_deltas = place_of("num_deltas")
cdef Py_ssize_t at_left = place_of("num_deltas_left")


cdef object result_of(
    scheduled, hits, long long num_slots, long long num_deltas, long long num_left
):
    """As an object that is not frozen would be made; its references are still NULL."""
    made = PyType_GenericNew(StepResult, NULL, NULL)
    refer(made, at_scheduled, scheduled)
    refer(made, at_hits, hits)
    refer(made, at_slots, num_slots)
    refer(made, at_deltas, num_deltas)
    refer(made, at_left, num_left)
    return made


cdef inline void refer(made, Py_ssize_t at, value) noexcept:
    Py_INCREF(value)
    (<PyObject **>(<char *><void *>made + at))[0] = <PyObject *>value


cdef object filled(Py_ssize_t count, long long value):
    """See the twin."""
    cdef array.array made = array.clone(one_long, count, False)
    cdef Py_ssize_t i
    for i in range(count):
        made.data.as_longlongs[i] = value
    return made


cdef bint put_array(values, long long[::1] to, Py_ssize_t at, Py_ssize_t count) noexcept:
    """See the twin. No other thread can change the array meanwhile."""
    cdef array.array given = <array.array>values
    cdef Py_ssize_t i
    if len(given) != count:
        return False
    if given.ob_descr.typecode == c"q":
        if count:
            memcpy(&to[at], given.data.as_longlongs, 8 * count)
        return True
    if given.ob_descr.typecode == c"i":
        for i in range(count):
            to[at + i] = given.data.as_ints[i]
        return True
    return False


cdef Py_ssize_t put_small(list values, long long[::1] to, Py_ssize_t at) noexcept:
    """See the twin."""
    cdef Py_ssize_t i, small
    cdef PyObject *value
    for i in range(len(values)):
        value = PyList_GET_ITEM(values, i)
        if not PyLong_CheckExact(value):
            return i
        small = kvfast_small(value)
        if small < 0:
            return i
        to[at + i] = small
    return len(values)


cdef int[:, ::1] rows_of(given):
    """See the twin. Of the usual view only what the type of the answer does not say is checked."""
    cdef int[:, ::1] view
    cdef const char *form
    if type(given) is memoryview:
        try:
            view = given
        except (ValueError, BufferError):  # released, read-only, of another form or in pieces
            return delta_rows("block_deltas", given)
        form = PyMemoryView_GET_BUFFER(given).format
        if form is not NULL and form[0] == c"i" and form[1] == 0 and view.shape[1] == 4:
            return view
    return delta_rows("block_deltas", given)


cdef list pieces_of(const unsigned char[::1] data, Py_ssize_t size, Py_ssize_t first, Py_ssize_t end):
    """See the twin."""
    cdef list pieces = []
    cdef Py_ssize_t i
    for i in range(first, end):
        pieces.append(PyBytes_FromStringAndSize(<const char *>&data[i * size], size))
    return pieces
