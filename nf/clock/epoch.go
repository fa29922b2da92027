package clock

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"time"
)

// Epoch says when a clock showed zero, on a scale that all processes have until the machine is started anew. With it a process tells
// what a former one's times are on its own clock, also where the machine's was set meanwhile. The zero Epoch is not known.
type Epoch struct {
	boot [16]byte // of the machine (random/boot_id)
	zero int64    // ns of Kernel
}

// EpochLen is the length of an Epoch's bytes.
const EpochLen = 24

// EpochOf is c's; it is not known of clocks other than a Wall.
func EpochOf(c Clock) (e Epoch) {
	w, ok := c.(*Wall)
	if !ok || w == nil {
		return e
	}
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return e
	}
	boot, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err != nil || len(boot) != len(e.boot) {
		return e
	}
	return Epoch{[16]byte(boot), Kernel() - int64(w.Now())}
}

// EpochIn is what Put wrote to b.
func EpochIn(b []byte) Epoch {
	return Epoch{[16]byte(b), int64(binary.LittleEndian.Uint64(b[16:]))}
}

// Put writes e to the first EpochLen bytes of b.
func (e Epoch) Put(b []byte) {
	copy(b, e.boot[:])
	binary.LittleEndian.PutUint64(b[16:], uint64(e.zero))
}

// Since is what a clock of epoch e shows more than one of the epoch was; 0 where they are not known, or are of different starts
// of the machine.
func (e Epoch) Since(was Epoch) Duration {
	if e.boot != was.boot {
		return 0
	}
	return time.Duration(was.zero - e.zero)
}
