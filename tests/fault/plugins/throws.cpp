/* throws.cpp - an exception that leaves a plugin: nothing above it catches one. SPDX-License-Identifier: MIT */
extern "C" void bp_fault_throw(void);
extern "C" void bp_fault_throw(void)
{
    throw 1;
}
