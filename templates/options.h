//~ Every FW_ option: the switches that change the structure of a kernel. An emitted file contains
//~ none of them. The values below are for editors and for compiling a template by hand;
//~ option_names() of generator/specialise.cpp is the same list, and a test compares the two.
#pragma once

#ifndef FW_FP16
#define FW_FP16 0
#endif
#ifndef FW_BF16
#define FW_BF16 1
#endif
#ifndef FW_FP32
#define FW_FP32 0
#endif
#ifndef FW_MASK
#define FW_MASK 1
#endif
#ifndef FW_BLOCKS
#define FW_BLOCKS 0
#endif
#ifndef FW_DROPOUT
#define FW_DROPOUT 0
#endif
#ifndef FW_SOFTCAP
#define FW_SOFTCAP 0
#endif
#ifndef FW_ALIBI
#define FW_ALIBI 0
#endif
#ifndef FW_Q_IN_REGISTERS
#define FW_Q_IN_REGISTERS 0
#endif
#ifndef FW_ONE_STAGE
#define FW_ONE_STAGE 0
#endif
#ifndef FW_LAZY_RESCALE
#define FW_LAZY_RESCALE 0
#endif
#ifndef FW_PING_PONG
#define FW_PING_PONG 0
#endif
#ifndef FW_PERSISTENT
#define FW_PERSISTENT 0
#endif
#ifndef FW_CLUSTER
#define FW_CLUSTER 0
#endif
#ifndef FW_LATE_LSE
#define FW_LATE_LSE 0
#endif
#ifndef FW_EMULATED_EXP2
#define FW_EMULATED_EXP2 0
#endif
#ifndef FW_COUNTER
#define FW_COUNTER 0
#endif
#ifndef FW_SWAP_ROWS
#define FW_SWAP_ROWS 0
#endif
#ifndef FW_RESCALE_THRESHOLD
#define FW_RESCALE_THRESHOLD 0
#endif
#ifndef FW_LONGEST_FIRST
#define FW_LONGEST_FIRST 0
#endif
#ifndef FW_WINDOW
#define FW_WINDOW 0
#endif
#ifndef FW_NEGATIVE_SCALE
#define FW_NEGATIVE_SCALE 0
#endif
#ifndef FW_HALF_TILES
#define FW_HALF_TILES 0
#endif
#ifndef FW_PACK_HEADS
#define FW_PACK_HEADS 0
#endif
#ifndef FW_SPLIT_KEYS
#define FW_SPLIT_KEYS 0
#endif
#ifndef FW_ADDER
#define FW_ADDER 0
#endif
#ifndef FW_TWO_PARTS
#define FW_TWO_PARTS 0
#endif
#ifndef FW_ADD_QUERIES
#define FW_ADD_QUERIES 0
#endif
