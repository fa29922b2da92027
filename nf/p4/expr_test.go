package p4

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// value is an expression with the value that it must yield, in unbounded integers.
type value struct {
	json any
	n    *big.Int
}

// operand is a field of the header "m" or a constant.
type operands struct {
	fields arr
	values []value
}

// genOperands draws fields of all sorts of widths with their values.
func genOperands(t *rapid.T) operands {
	var o operands
	for i := range rapid.IntRange(1, 4).Draw(t, "fields") {
		w := rapid.OneOf(rapid.IntRange(2, 70), rapid.SampledFrom([]int{8, 63, 64, 65, 127, 128, 129, 200, 256})).Draw(t, "width")
		signed := rapid.Bool().Draw(t, "signed")
		n := genNumber(t, w)
		if signed && n.Bit(w-1) == 1 {
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(w)))
		}
		name := fmt.Sprintf("f%d", i)
		o.fields = append(o.fields, arr{name, w, signed})
		o.values = append(o.values, value{fld("m", name), n})
	}
	return o
}

// genNumber draws w bits, often extreme ones.
func genNumber(t *rapid.T, w int) *big.Int {
	all := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(w)), big.NewInt(1))
	switch rapid.IntRange(0, 4).Draw(t, "extreme") {
	case 0:
		return all
	case 1:
		return new(big.Int).Lsh(big.NewInt(1), uint(w-1))
	case 2:
		return new(big.Int).And(all, big.NewInt(rapid.Int64Range(0, 3).Draw(t, "small")))
	}
	n := new(big.Int)
	for range (w + 63) / 64 {
		n.Lsh(n, 64).Or(n, new(big.Int).SetUint64(rapid.Uint64().Draw(t, "word")))
	}
	return n.And(n, all)
}

func hexBig(n *big.Int) obj {
	if n.Sign() < 0 {
		return hexs("-0x%x", new(big.Int).Neg(n))
	}
	return hexs("0x%x", n)
}

// genData draws an expression that yields a number.
func genData(t *rapid.T, o operands, depth int) value {
	if depth == 0 || rapid.IntRange(0, 5).Draw(t, "leaf") == 0 {
		if rapid.Bool().Draw(t, "constant") {
			n := genNumber(t, rapid.IntRange(1, 140).Draw(t, "bits"))
			if rapid.Bool().Draw(t, "negative") {
				n.Neg(n)
			}
			return value{hexBig(n), n}
		}
		return rapid.SampledFrom(o.values).Draw(t, "field")
	}
	sub := func() value { return genData(t, o, depth-1) }
	op := rapid.SampledFrom([]string{"+", "-", "*", "&", "|", "^", "~", "<<", ">>", "/", "%", "two_comp_mod", "sat_cast", "usat_cast",
		"?", "b2d", "neg"}).Draw(t, "op")
	z := new(big.Int)
	switch op {
	case "~":
		a := sub()
		return value{exp(op, nil, a.json), z.Not(a.n)}
	case "neg":
		a := sub()
		return value{exp("-", nil, a.json), z.Neg(a.n)}
	case "b2d":
		j, v := genBool(t, o, depth-1)
		return value{exp(op, nil, j), big.NewInt(int64(b2u(v)))}
	case "?":
		j, c := genBool(t, o, depth-1)
		a, b := sub(), sub()
		e := exp(op, a.json, b.json)
		e["value"].(obj)["cond"] = j
		if c {
			return value{e, a.n}
		}
		return value{e, b.n}
	case "<<", ">>":
		a, by := sub(), rapid.IntRange(0, 140).Draw(t, "by")
		e := exp(op, a.json, hexs("0x%x", by))
		if op == "<<" {
			return value{e, z.Lsh(a.n, uint(by))}
		}
		return value{e, z.Rsh(a.n, uint(by))}
	case "/", "%":
		a, b := sub(), sub()
		e := exp(op, a.json, b.json)
		switch {
		case a.n.Sign() < 0 || b.n.Sign() <= 0: // nothing that P4 allows
			return value{hexs("0x0"), z}
		case op == "/":
			return value{e, z.Quo(a.n, b.n)}
		}
		return value{e, z.Rem(a.n, b.n)}
	case "two_comp_mod", "sat_cast", "usat_cast":
		a, w := sub(), rapid.IntRange(2, 140).Draw(t, "width")
		return value{exp(op, a.json, hexs("0x%x", w)), castBig(op, a.n, uint(w))}
	}
	a, b := sub(), sub()
	e := exp(op, a.json, b.json)
	f := map[string]func(z, x, y *big.Int) *big.Int{"+": (*big.Int).Add, "-": (*big.Int).Sub, "*": (*big.Int).Mul,
		"&": (*big.Int).And, "|": (*big.Int).Or, "^": (*big.Int).Xor}[op]
	return value{e, f(z, a.n, b.n)}
}

func castBig(op string, a *big.Int, w uint) *big.Int {
	one := big.NewInt(1)
	z := new(big.Int)
	low, high := new(big.Int), new(big.Int).Sub(z.Lsh(one, w), one)
	if op != "usat_cast" {
		high = new(big.Int).Sub(new(big.Int).Lsh(one, w-1), one)
		low.Sub(new(big.Int).Neg(high), one)
	}
	if op == "two_comp_mod" {
		m := new(big.Int).And(a, new(big.Int).Sub(new(big.Int).Lsh(one, w), one))
		if m.Cmp(high) > 0 {
			m.Sub(m, new(big.Int).Lsh(one, w))
		}
		return m
	}
	switch {
	case a.Cmp(low) < 0:
		return low
	case a.Cmp(high) > 0:
		return high
	}
	return a
}

// genBool draws an expression that yields a bool.
func genBool(t *rapid.T, o operands, depth int) (any, bool) {
	op := rapid.SampledFrom([]string{"==", "!=", "<", "<=", ">", ">=", "d2b", "not", "and", "or", "bool"}).Draw(t, "test")
	if depth == 0 && (op == "not" || op == "and" || op == "or") {
		op = "bool"
	}
	switch op {
	case "bool":
		v := rapid.Bool().Draw(t, "bool")
		return obj{"type": "bool", "value": v}, v
	case "d2b":
		a := genData(t, o, max(0, depth-1))
		return exp(op, nil, a.json), a.n.Sign() != 0
	case "not":
		j, v := genBool(t, o, depth-1)
		return exp(op, nil, j), !v
	case "and", "or":
		a, x := genBool(t, o, depth-1)
		b, y := genBool(t, o, depth-1)
		if op == "and" {
			return exp(op, a, b), x && y
		}
		return exp(op, a, b), x || y
	}
	a, b := genData(t, o, max(0, depth-1)), genData(t, o, max(0, depth-1))
	c := a.n.Cmp(b.n)
	return exp(op, a.json, b.json), map[string]bool{"==": c == 0, "!=": c != 0, "<": c < 0, "<=": c <= 0, ">": c > 0, ">=": c >= 0}[op]
}

// TestArithmetic compares expressions of every width with math/big: what an
// assignment stores, and what a condition decides.
func TestArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := genOperands(t)
		e := genData(t, o, 4)
		width := rapid.OneOf(rapid.IntRange(2, 70), rapid.IntRange(71, 260)).Draw(t, "result width")
		signed := rapid.Bool().Draw(t, "result signed")
		s := newSource()
		s.header("m", true, o.fields...)
		s.header("r", true, arr{"x", width, signed})
		id := s.action("go", nil, prim("assign", fld("r", "x"), wrap(e.json.(obj))))
		s.always(s.ingress, "t", "go", id, nil)
		p, err := Load(s.json())
		if err != nil {
			t.Fatal(err)
		}
		sw, _ := NewSwitch(p, Config{})
		k := sw.take()
		h := headerOf(p, "m")
		for i, f := range h.typ.fields {
			n := o.values[i].n
			w := bigWords(n, words(f.bits))
			wKeep(w, f.bits, false)
			copy(k.v[h.base+f.off:], w)
		}
		sw.apply(k, p.ingress)
		r := headerOf(p, "r")
		got := k.v[r.base+1 : r.base+1+words(width)]
		want := bigWords(e.n, words(width))
		wKeep(want, width, false)
		if !sameWords(got, want) {
			t.Fatalf("%d bits: %x, want %x (%v) of %s", width, got, want, e.n, short(e.json))
		}
	})
}

func TestConditions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := genOperands(t)
		j, want := genBool(t, o, 3)
		s := newSource()
		s.header("m", true, o.fields...)
		id := s.action("yes", nil, prim("assign", std("egress_spec"), hexs("0x7")))
		s.always(s.ingress, "t", "yes", id, nil)
		s.ingress["init_table"] = "c"
		s.ingress["conditionals"] = arr{obj{"name": "c", "id": 0, "expression": j, "true_next": "t", "false_next": nil}}
		p, err := Load(s.json())
		if err != nil {
			t.Fatal(err)
		}
		sw, _ := NewSwitch(p, Config{})
		k := sw.take()
		h := headerOf(p, "m")
		for i, f := range h.typ.fields {
			w := bigWords(o.values[i].n, words(f.bits))
			wKeep(w, f.bits, false)
			copy(k.v[h.base+f.off:], w)
		}
		sw.apply(k, p.ingress)
		if got := p.std.egressSpec.get(k) == 7; got != want {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

func headerOf(p *Program, name string) *header {
	for _, h := range p.headers {
		if h.name == name {
			return h
		}
	}
	panic(name)
}

// TestBits compares reading and writing of fields at any place with math/big.
func TestBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var widths []int
		total := 0
		for range rapid.IntRange(1, 12).Draw(t, "fields") {
			w := rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(1, 300)).Draw(t, "width")
			widths, total = append(widths, w), total+w
		}
		all := genNumber(t, max(total, 1))
		var w bitWriter
		w.b = []byte{0xaa} // in front
		at := total
		var want [][]uint64
		for _, n := range widths {
			at -= n
			v := new(big.Int).Rsh(all, uint(at))
			v.And(v, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(n)), big.NewInt(1)))
			ws := bigWords(v, words(n))
			want = append(want, ws)
			if n <= 64 {
				w.put(ws[0], uint(n))
			} else {
				w.putWide(ws, n)
			}
		}
		w.flush()
		size := (total + 7) / 8
		ref := make([]byte, size)
		new(big.Int).Lsh(all, uint(8*size-total)).FillBytes(ref)
		if string(w.b[1:]) != string(ref) {
			t.Fatalf("%x, want %x of %v", w.b[1:], ref, widths)
		}
		tail := rapid.SliceOfN(rapid.Byte(), 0, 10).Draw(t, "tail")
		off := 0
		for i, n := range widths {
			got := make([]uint64, words(n))
			readWide(got, append(w.b[1:1+size:1+size], tail...), off, n)
			if !sameWords(got, want[i]) {
				t.Fatalf("field %d at %d: %x, want %x", i, off, got, want[i])
			}
			off += n
		}
	})
}

// TestSummer compares the checksum that is added up from fields with that of
// their bytes.
func TestSummer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s summer
		var w bitWriter
		for range rapid.IntRange(0, 30).Draw(t, "fields") {
			n := rapid.OneOf(rapid.IntRange(1, 64), rapid.IntRange(65, 300)).Draw(t, "bits")
			v := bigWords(genNumber(t, n), words(n))
			s.addWide(v, n)
			w.putWide(v, n)
		}
		w.flush()
		sum := s.sum
		for sum>>16 != 0 {
			sum = sum>>16 + sum&0xffff
		}
		if want := csum16(w.b); ^sum&0xffff != want {
			t.Fatalf("%04x, want %04x", ^sum&0xffff, want)
		}
	})
}

// TestChecksumPlan: what a calculation adds up field by field is the checksum of
// the bytes that the fields make, whatever headers are invalid.
func TestChecksumPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c calculation
		base := 0
		k := &packetState{sw: &Switch{}, truncate: maxFrame}
		for n := rapid.IntRange(1, 6).Draw(t, "inputs"); n > 0; n-- {
			if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
				bits := rapid.IntRange(1, 100).Draw(t, "bits")
				v := rapid.SliceOfN(rapid.Uint64(), words(bits), words(bits)).Draw(t, "value")
				wKeep(v, bits, false)
				c.inputs = append(c.inputs, input{value: v, bits: bits})
				continue
			}
			typ := &headerType{words: 1}
			for range rapid.IntRange(1, 5).Draw(t, "fields") {
				f := &field{bits: rapid.SampledFrom([]int{1, 3, 4, 8, 13, 16, 31, 32, 33, 48, 64, 65, 128}).Draw(t, "bits"), off: typ.words, bitOff: typ.bits}
				typ.words += words(f.bits)
				typ.bits += f.bits
				typ.fields = append(typ.fields, f)
			}
			if f := typ.fields[len(typ.fields)-1]; rapid.IntRange(0, 4).Draw(t, "varbit") == 0 {
				f.varbit, typ.varbit, f.lengthOff = true, f, typ.words
				typ.words++
			}
			h := &header{typ: typ, base: base}
			base += typ.words
			k.v = append(k.v, rapid.Uint64Range(0, 1).Draw(t, "valid"))
			for _, f := range typ.fields {
				v := rapid.SliceOfN(rapid.Uint64(), words(f.bits), words(f.bits)).Draw(t, "value")
				length := f.bits
				if f.varbit {
					length = rapid.IntRange(0, f.bits).Draw(t, "length")
				}
				wKeep(v, length, false)
				k.v = append(k.v, v...)
				if f.varbit {
					k.v = append(k.v, uint64(length))
				}
			}
			if rapid.Bool().Draw(t, "whole") {
				c.inputs = append(c.inputs, input{hdr: h})
				continue
			}
			for _, f := range typ.fields {
				c.inputs = append(c.inputs, input{hdr: h, fld: f})
			}
		}
		c.payload = rapid.Bool().Draw(t, "payload")
		k.frame = rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "frame")
		c.planSum()
		c.index, c.hash = -1, csum16
		if got, want := c.checksum(k), c.output(k); got != want {
			t.Fatalf("%04x, want %04x", got, want)
		}
	})
}

// TestLoads: a header reads the same whether bytes follow it or not.
func TestLoads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		typ := &headerType{words: 1}
		for range rapid.IntRange(1, 8).Draw(t, "fields") {
			f := &field{bits: rapid.IntRange(1, 70).Draw(t, "bits"), off: typ.words, bitOff: typ.bits}
			typ.words += words(f.bits)
			typ.bits += f.bits
			typ.fields = append(typ.fields, f)
		}
		if rest := -typ.bits & 7; rest > 0 {
			typ.fields = append(typ.fields, &field{bits: rest, off: typ.words, bitOff: typ.bits})
			typ.words++
			typ.bits += rest
		}
		typ.planLoads()
		frame := rapid.SliceOfN(rapid.Byte(), typ.bits/8+beyond, typ.bits/8+beyond).Draw(t, "frame")
		read := func(frame []byte) []uint64 {
			k := &packetState{v: make([]uint64, typ.words), frame: frame}
			if err := k.extract(&parserErrors{}, typ, 0, 0); err != parsed {
				t.Fatalf("error %d", err)
			}
			return k.v
		}
		if long, short := read(frame), read(frame[:typ.bits/8]); !slices.Equal(long, short) {
			t.Fatalf("%x, without what follows %x", long, short)
		}
	})
}

// TestSaturate: saturating casts of numbers that may be negative, at the width of a word.
func TestSaturate(t *testing.T) {
	for _, c := range []struct {
		op    string
		v     string
		width int
		want  uint64
	}{{"usat_cast", "0x5", 64, 5}, {"usat_cast", "-0x5", 64, 0}, {"usat_cast", "0x5", 2, 3}, {"sat_cast", "-0x5", 64, ^uint64(4)},
		{"sat_cast", "-0x5", 3, ^uint64(3)}, {"sat_cast", "0x7fffffff", 31, 1<<30 - 1}} {
		s := newSource()
		s.header("m", true, arr{"in", 63, true}, arr{"x", 64})
		id := s.action("go", nil, prim("assign", fld("m", "in"), obj{"type": "hexstr", "value": c.v}),
			prim("assign", fld("m", "x"), wrap(exp(c.op, fld("m", "in"), hexs("0x%x", c.width)))))
		s.always(s.ingress, "t", "go", id, nil)
		sw := s.load(t, Config{})
		k := sw.take()
		sw.apply(k, sw.prog.ingress)
		if got := k.v[headerOf(sw.prog, "m").base+2]; got != c.want {
			t.Errorf("%s of %s to %d bits: %x, want %x", c.op, c.v, c.width, got, c.want)
		}
	}
}

// TestChoiceOfOneType: a choice whose two values are read at different places, or that
// says no stack, is refused: it would be read outside of the packet's state.
func TestChoiceOfOneType(t *testing.T) {
	choose := func(a, b any) obj {
		e := exp("?", a, b)
		e["value"].(obj)["cond"] = obj{"type": "bool", "value": false}
		return e
	}
	stack := obj{"type": "header_stack", "value": "e"}
	for name, e := range map[string]obj{
		"size of a stack": exp("size_stack", nil, choose(stack, stack)),
		"of a stack":      exp("access_field", exp("dereference_stack", choose(stack, stack), hexs("0x0")), 0),
		"of two types":    exp("access_field", choose(hdrv("standard_metadata"), hdrv("last")), 16),
	} {
		s := stacked(prim("assign", std("egress_spec"), wrap(e)))
		s.header("last", true, arr{"x", 8})
		p, err := Load(s.json())
		if err != nil {
			if want := "a choice of a header"; !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", name, err, want)
			}
			continue
		}
		t.Errorf("%s: accepted", name)
		sw, _ := NewSwitch(p, Config{})
		sw.Process(1, 1, []byte("\x02\x04\x05\x01"), func(uint32, []byte) {})
	}
}
