package p4

import (
	"encoding/binary"
	"slices"
)

// externs holds the instances of PSA's externs that the JSON has nowhere else.
type externs struct {
	hashes map[string]func(b []byte) uint64
	sums   map[string]int // of an InternetChecksum: the word of the packet's state with its sum
}

// externInstances reads the instances of PSA's externs. Counters and direct meters are also in the JSON's own lists.
func (l *compiler) externInstances() {
	l.hashes, l.sums = map[string]func(b []byte) uint64{}, map[string]int{}
	for _, j := range l.Externs {
		l.in(j.Type+" "+j.Name, func() {
			switch j.Type {
			case "Hash":
				algo := j.attribute("algo").text
				if algo == "" {
					algo = "csum16" // p4c has no name for ONES_COMPLEMENT16
				}
				if l.hashes[j.Name] = algorithm(algo); l.hashes[j.Name] == nil {
					l.fail("unknown hash algorithm %q", algo)
				}
			case "InternetChecksum":
				l.sums[j.Name] = l.slot(1)
			case "Meter":
				size, rates := l.amount(&j, "n_meters"), l.amount(&j, "rate_count")
				l.MeterArrays = append(l.MeterArrays, jsonArray{jsonObject: j.jsonObject, Size: &size, RateCount: &rates, Type: j.attribute("type").text})
			}
		})
	}
}

// attribute returns an argument of the constructor; it has no json if there is none with this name.
func (j *jsonExtern) attribute(name string) *jsonValue {
	for i := range j.Attributes {
		if a := &j.Attributes[i]; a.Name == name {
			return &a.Value
		}
	}
	return &jsonValue{}
}

// amount returns a number among the arguments of a constructor, which is a hexstr or a plain number.
func (l *document) amount(j *jsonExtern, name string) float64 {
	v := j.attribute(name)
	if v.number != nil {
		return *v.number
	}
	return float64(l.hexWords(v.text, 32)[0])
}

// psaPrimitives are the primitives that only programs for PSA have.
var psaPrimitives = map[string]primitive{
	"_Counter_count":               {2, call.count},
	"_Meter_execute":               {3, call.meter},
	"_Hash_get_hash":               {3, call.hashOf},
	"_Hash_get_hash_mod":           {5, call.hashWithin},
	"_InternetChecksum_clear":      {1, call.sumClear},
	"_InternetChecksum_add":        {2, func(c call) step { return c.sumAdd(0) }},
	"_InternetChecksum_subtract":   {2, func(c call) step { return c.sumAdd(0xffff) }},
	"_InternetChecksum_get":        {2, func(c call) step { return c.sumGet(0xffff) }},
	"_InternetChecksum_get_state":  {2, func(c call) step { return c.sumGet(0) }},
	"_InternetChecksum_get_verify": {3, call.sumVerify},
	"_InternetChecksum_set_state":  {2, call.sumSet},
	"generate_digest":              {1, call.pack},
	"set":                          {2, func(c call) step { return c.assign(c.data(&c.Parameters[1])) }},
}

// v1Requests are primitives that ask v1model for something, in places where PSA does not look.
var v1Requests = []string{"drop", "mark_to_drop", "resubmit", "recirculate", "clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress", "truncate"}

func (a *psa) primitive(name string) (primitive, bool) {
	p, ok := psaPrimitives[name]
	if !ok && !slices.Contains(v1Requests, name) {
		p, ok = primitives[name]
	}
	return p, ok
}

// pack compiles Digest.pack. The parameter is the digest's id.
func (c call) pack() step {
	id := c.index(0)
	return step{run: func(k *packetState) { k.sw.sendDigest(k, int(id(k)&0xffff)) }}
}

// piece is a part of the data of a hash or a checksum: the valid headers of a type, or a number.
type piece struct {
	hdr  *expr
	base baseFn
	get  func(k *packetState) // stores the number in the scratch words
	at   int
	bits int
}

// pieces compiles parameter i, a list of fields. It also returns the number of bits of all the numbers.
func (c call) pieces(i int) (all []piece, bits int) {
	for _, v := range c.Parameters[i].inner().list {
		if v.typ == "" && v.op != "" { // p4c writes operations in lists without a type
			v = &jsonValue{json: v.json, typ: "expression", value: v}
		}
		e := c.expr(v)
		if e.sort == sortHeader {
			all = append(all, piece{hdr: e, base: c.g.base(e)})
			continue
		}
		e = c.data(v)
		p := piece{bits: e.width()}
		if v.typ == "hexstr" { // the number is as wide as its digits, or as the JSON says
			p.bits = c.optional(v.bitwidth(), "bitwidth", max(1, 4*(len(v.inner().text)-len("0x"))), 1, maxBits)
		}
		n := words(p.bits)
		p.at = c.g.words(n)
		p.get = c.g.store(&expr{op: opScratch, idx: p.at, bits: p.bits}, e)
		all, bits = append(all, p), bits+p.bits
	}
	return all, bits
}

// bitwidth returns the width of a constant, or nil if the JSON does not say it.
func (v *jsonValue) bitwidth() *float64 {
	m, _ := v.json.(map[string]any)
	if n, ok := m["bitwidth"].(float64); ok {
		return &n
	}
	return nil
}

// gather compiles parameter i, a list of fields, to their bits one after the other. Zeros before them fill up the first
// byte, as in psa_switch. It also returns the number of bits that are no headers. The bytes are valid until the next use of Switch.buf.
func (c call) gather(i int) (data func(k *packetState) []byte, bits int) {
	all, bits := c.pieces(i)
	pad := uint(-bits & 7)
	data = func(k *packetState) []byte {
		w := bitWriter{b: k.sw.buf[:0]}
		w.put(0, pad)
		for i := range all {
			p := &all[i]
			if p.hdr == nil {
				p.get(k)
				w.putWide(k.tmp[p.at:p.at+words(p.bits)], p.bits)
			} else if b := p.base(k); b >= 0 && k.v[b] != 0 {
				w.putHeader(k, p.hdr.typ, b)
			}
		}
		w.flush()
		k.sw.buf = w.b
		return w.b
	}
	return data, bits
}

func (c call) hashOf() step {
	hash := find(c.document, c.hashes, "Hash", c.name(0))
	data, _ := c.gather(2)
	at, store := c.computed(1)
	return step{run: func(k *packetState) {
		k.tmp[at] = hash(data(k))
		store(k)
	}}
}

// hashWithin compiles the hash modulo the last parameter, plus a base.
func (c call) hashWithin() step {
	hash := find(c.document, c.hashes, "Hash", c.name(0))
	data, _ := c.gather(3)
	at, store := c.computed(1)
	base, size := c.index(2), c.index(4)
	return step{run: func(k *packetState) {
		k.tmp[at] = hash(data(k))%max(1, size(k)) + base(k)
		store(k)
	}}
}

// An InternetChecksum has a 16-bit sum in one's complement. It is 0 when a packet enters a block.

// sum returns the word of the packet's state with the sum of parameter 0.
func (c call) sum() int { return find(c.document, c.sums, "InternetChecksum", c.name(0)) }

func (c call) sumClear() step {
	at := c.sum()
	return step{run: func(k *packetState) { k.v[at] = 0 }}
}

// sumAdd adds each 16 bits of the data after an exclusive or with flip: 0 to add, all ones to subtract.
func (c call) sumAdd(flip uint64) step {
	at := c.sum()
	data, bits := c.gather(1)
	if bits%16 != 0 {
		c.fail("%d bits are no whole number of 16-bit words", bits)
	}
	return step{run: func(k *packetState) {
		sum := k.v[at]
		b := data(k)
		for ; len(b) >= 2; b = b[2:] {
			sum += uint64(binary.BigEndian.Uint16(b)) ^ flip
			sum = sum>>16 + sum&0xffff
		}
		if len(b) > 0 { // of a header
			sum += uint64(b[0])<<8 ^ flip
			sum = sum>>16 + sum&0xffff
		}
		k.v[at] = sum
	}}
}

// sumGet stores the sum after an exclusive or with flip: 0 for the state, all ones for the checksum.
func (c call) sumGet(flip uint64) step {
	sum := c.sum()
	at, store := c.computed(1)
	return step{run: func(k *packetState) {
		k.tmp[at] = k.v[sum] ^ flip
		store(k)
	}}
}

// sumVerify stores whether the last parameter is the checksum.
func (c call) sumVerify() step {
	sum, is := c.sum(), c.index(2)
	at, store := c.computed(1)
	return step{run: func(k *packetState) {
		k.tmp[at] = b2u(is(k) == k.v[sum]^0xffff)
		store(k)
	}}
}

func (c call) sumSet() step {
	at, to := c.sum(), c.index(1)
	return step{run: func(k *packetState) { k.v[at] = to(k) & 0xffff }}
}
