"""Drive a manager: operations, programs of them, and the checks after each."""
