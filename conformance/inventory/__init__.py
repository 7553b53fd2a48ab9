"""Which tests the suites hold and what each depends on, read from source without importing it."""
