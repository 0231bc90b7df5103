"""The compiled twin of kvfast/_core/objects.py, over Python's C functions.

In Cython's own language: Python has no word for a slot of a type or the memory of an array.
"""

from cpython cimport array
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.string cimport memcpy

from kvspec._arrays import delta_rows
from kvspec.batched import StepResult

cdef extern from "Python.h":
    object PyType_GenericNew(object made, void *args, void *options)
    int PyObject_GenericSetAttr(object made, object name, object value) except -1
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


cdef object result_of(
    scheduled, hits, long long num_slots, long long num_deltas, long long num_left
):
    """As an object that is not frozen would be made."""
    made = PyType_GenericNew(StepResult, NULL, NULL)
    PyObject_GenericSetAttr(made, "num_scheduled_tokens", scheduled)
    PyObject_GenericSetAttr(made, "hit_tokens", hits)
    PyObject_GenericSetAttr(made, "num_slots", num_slots)
    PyObject_GenericSetAttr(made, "num_deltas", num_deltas)
    PyObject_GenericSetAttr(made, "num_deltas_left", num_left)
    return made


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
