package p4

// noNode stands for the end of a pipeline.
const noNode = -1

// maxBits is the widest field that is accepted. P4 implementations stop at 2048 bits, and a header must fit a
// packet.
const maxBits = 1 << 16

// maxSlots is the longest state of a packet, in words.
const maxSlots = 1 << 20

// words returns the number of 64-bit words that hold bits bits.
func words(bits int) int { return (bits + 63) / 64 }

// mask64 returns a word whose lowest bits bits are set.
func mask64(bits int) uint64 {
	if bits >= 64 {
		return ^uint64(0)
	}
	return 1<<uint(bits) - 1
}

// field is a field of a header type. Its value is in words(bits) words at offset off of the header, least
// significant first; bits above the field's width are 0, also for signed fields.
type field struct {
	name      string
	bits      int // width; of a varbit, the largest width
	signed    bool
	saturate  bool
	varbit    bool
	off       int // word, from the header's base
	bitOff    int // bit offset in the header, if the varbit is empty
	lengthOff int // word that holds a varbit's length in bits
}

type headerType struct {
	name   string
	fields []*field
	index  map[string]*field
	words  int // number of words, with the validity
	bits   int // number of bits, without the varbit
	varbit *field
	// lengthExp computes the length of a varbit for an extraction that does not give it. If it has no json,
	// there is none. Its fields belong to the header itself.
	lengthExp *jsonValue
	// loads reads all fields, if each lies in eight bytes; else it is nil.
	loads []load
}

// header is a header instance. Its words begin at base; the first is its validity.
type header struct {
	name string
	id   int
	typ  *headerType
	base int
	meta bool
	// others are the bases of the other members of the header's union.
	others []int
}

// stack is a header stack. Slot next counts the headers that the parser has extracted or the program has
// pushed.
type stack struct {
	name  string
	typ   *headerType
	bases []int
	elems []*header
	next  int
}

type union struct {
	name    string
	members []*header
	types   []string // names of the members in the union's type
}

type unionStack struct {
	name  string
	elems []*union
	next  int
}

type slotValue struct {
	slot  int
	value uint64
}

// copyRange is a range of words of the state that a field list preserves.
type copyRange struct{ slot, n int }

// stdField is a field that the architecture reads or writes. Slot -1 means that the program does not have it.
type stdField struct {
	slot int
	mask uint64
}

func (f stdField) set(k *packetState, v uint64) {
	if f.slot >= 0 {
		k.v[f.slot] = v & f.mask
	}
}

func (f stdField) get(k *packetState) uint64 {
	if f.slot < 0 {
		return 0
	}
	return k.v[f.slot]
}

// standard holds the fields of v1model's standard_metadata that the architecture uses, under the names that
// simple_switch gives them. Replication sets rid, priority, enqTime and enqDepth for every architecture.
type standard struct {
	ingressPort, packetLength, instanceType, egressSpec, egressPort stdField
	parserError, checksumError                                      stdField
	ingressTime, egressTime, group, rid, priority                   stdField
	enqTime, enqDepth, deqTime, deqDepth, qid                       stdField
}

// packetState is the state of a packet on its way through the pipelines.
type packetState struct {
	v    []uint64 // words of headers, metadata and stacks
	tmp  []uint64
	args []uint64 // data of the action that runs
	sw   *Switch

	frame []byte // the frame that is parsed; frame[at:] is the payload
	at    int
	own   []byte // memory of a frame that came from a deparser

	length   uint64 // packet_length, kept by add_header and remove_header
	arrived  int    // bytes of the frame when it came in, for counters and meters
	truncate int
	cut      int    // largest number of bytes that leave, by its clone session; 0: all
	port     uint32 // egress port
	copied   int    // number of the copy; 0: the packet that came in

	session                          uint32 // if the packet is cloned: session, with sessionValid
	cloneList                        uint32
	digest, resubmitted, recirculate uint32

	parseError  uint32
	badChecksum bool
	exit        bool
	failed      Reason // why an action cannot go on
	missed      bool   // the last table with a key was missed
}

// sessionValid marks a packet that is to be cloned. It is needed because session 0 is valid, too.
const sessionValid = 1 << 31

// setValid makes the header at base valid, and the other headers of its union invalid.
func (k *packetState) setValid(base int) {
	k.v[base] = 1
	if h := k.sw.prog.owner[base]; h.others != nil {
		for _, o := range h.others {
			k.v[o] = 0
		}
	}
}

// bytes returns the present length of the header on the wire, in bytes.
func (k *packetState) bytes(t *headerType, base int) int {
	n := t.bits
	if t.varbit != nil {
		n += int(k.v[base+t.varbit.lengthOff])
	}
	return n / 8
}
