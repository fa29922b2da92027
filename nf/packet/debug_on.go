//go:build pktdebug

package packet

// poisonByte fills freed slots, so that a stale reader sees nonsense at once.
const poisonByte = 0xDB

func (b *Buf) check() {
	if b.free {
		panic("packet: use of a freed Buf")
	}
}

func (b *Buf) poison() {
	for i := range b.mem {
		b.mem[i] = poisonByte
	}
}

func (b *Buf) unpoison() {}
