// Registers for the results of a tape's instructions: one is used again as soon as nobody needs what is in it.
#pragma once

#include "memory.hpp"

namespace kernels {

// Give a register to each result; how many registers there are then.
inline Count allocate_registers(
    const Count* operands,  // of each instruction, in turn, numbered one after the other, (count, 3)
    const Count* last,  // the last instruction that reads what is numbered so, (numbered,)
    const Count* results,  // what each instruction writes; -1: nothing, (count,)
    Count* place,  // the register of what is numbered so; known for what is no result, (numbered,)
    Count count, Count numbered,
    Count used  // registers that are taken
) {
    std::vector<Count> free;
    for (Count i = 0; i < count; i++) {
        const Count* read = operands + 3 * i;
        for (int j = 0; j < 3; j++) {
            Count x = read[j];
            require(x >= 0 && x < numbered, "an instruction reads what has no number");
            bool earlier = (j > 0 && read[0] == x) || (j > 1 && read[1] == x);
            if (last[x] == i && !earlier) free.push_back(place[x]);
        }
        require(results[i] < numbered, "an instruction writes what has no number");
        if (results[i] < 0) continue;  // it writes nothing
        if (free.empty()) {
            place[results[i]] = used++;
        } else {
            place[results[i]] = free.back();
            free.pop_back();
        }
    }
    return used;
}

}  // namespace kernels
