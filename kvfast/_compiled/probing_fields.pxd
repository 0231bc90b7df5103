# The numbers of kvfast/_core/probing.py as constants; modules see them under the name `probing`.
cdef enum:
    RUN_BLOCKS = 32
    SIDE_MASK = 7
    ENTRY_MASK = 2147483647
    STEPS_SHIFT = 31
    STEPS_MASK = 255
    TAG_SHIFT = 39
    TAG_OF_WORD_SHIFT = 40
    STEP = 9
    STEP_INVERSE = 954437177
    HOME_MASK = 2147483647
