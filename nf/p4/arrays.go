package p4

// arrays are the indirect counters, the meters and the registers, by their places in the program, and the members of value sets. Who controls
// the switch reads and sets them; primitives and parser states take cells and members from here.
type arrays struct {
	*common
	registers [][]uint64
	counters  [][]Count
	meters    [][]meter
	vsets     []valueSet
}

// resetArrays zeroes counters, registers and meters.
func (s *arrays) resetArrays() {
	s.registers, s.counters, s.meters = nil, nil, nil
	for _, r := range s.prog.registers {
		s.registers = append(s.registers, make([]uint64, r.Size*r.words))
	}
	for _, c := range s.prog.counters {
		s.counters = append(s.counters, make([]Count, c.Size))
	}
	for _, m := range s.prog.meters {
		n := m.Size
		if m.direct {
			n = 0
		}
		s.meters = append(s.meters, make([]meter, n))
	}
}

// cell finds an element of an array.
func cell[T interface{ info() *ArrayInfo }](list []T, what, name string, index int) (int, error) {
	i, err := named(list, what, name, func(x T) string { return x.info().Name })
	if err != nil {
		return 0, err
	}
	if n := list[i].info().Size; index < 0 || index >= n {
		return 0, invalid("%s %s: index %d, it has %d", what, name, index, n)
	}
	return i, nil
}

func (a *arrayDef) info() *ArrayInfo    { return &a.ArrayInfo }
func (r *registerDef) info() *ArrayInfo { return &r.ArrayInfo }
func (m *meterDef) info() *ArrayInfo    { return &m.ArrayInfo }

// Count is an indirect counter.
func (s *arrays) Count(name string, index int) (Count, error) {
	i, err := cell(s.prog.counters, "counter", name, index)
	if err != nil {
		return Count{}, err
	}
	return s.counters[i][index], nil
}

// SetCount sets an indirect counter.
func (s *arrays) SetCount(name string, index int, c Count) error {
	i, err := cell(s.prog.counters, "counter", name, index)
	if err != nil {
		return err
	}
	s.counters[i][index] = c
	return nil
}

// Register is a register's value, big-endian.
func (s *arrays) Register(name string, index int) ([]byte, error) {
	i, err := cell(s.prog.registers, "register", name, index)
	if err != nil {
		return nil, err
	}
	d := s.prog.registers[i]
	return bigEndian(s.registers[i][index*d.words:], d.Bits), nil
}

// SetRegister sets a register.
func (s *arrays) SetRegister(name string, index int, value []byte) error {
	i, err := cell(s.prog.registers, "register", name, index)
	if err != nil {
		return err
	}
	d := s.prog.registers[i]
	v := make([]uint64, d.words)
	if !number(v, value, d.Bits) {
		return invalid("register %s: %x is wider than %d bits", name, value, d.Bits)
	}
	copy(s.registers[i][index*d.words:], v)
	return nil
}

// Meter is the configuration of an indirect meter; none: all green.
func (s *arrays) Meter(name string, index int) ([]Rate, error) {
	i, err := cell(s.prog.meters, "meter", name, index)
	if err != nil {
		return nil, err
	}
	if s.prog.meters[i].direct {
		return nil, invalid("meter %s is direct: it belongs to entries", name)
	}
	return s.meters[i][index].config(), nil
}

// SetMeter configures an indirect meter: the committed rate and the peak rate;
// none resets it.
func (s *arrays) SetMeter(name string, index int, rates ...Rate) error {
	i, err := cell(s.prog.meters, "meter", name, index)
	if err != nil {
		return err
	}
	d := s.prog.meters[i]
	if d.direct {
		return invalid("meter %s is direct: it belongs to entries", name)
	}
	if err := checkRates(d, rates); err != nil {
		return err
	}
	s.meters[i][index].configure(s.now, rates)
	return nil
}

// SetValueSet sets the members of a parser's value set, big-endian.
func (s *arrays) SetValueSet(name string, members [][]byte) error {
	i, err := named(s.prog.vsets, "value set", name, func(d *valueSetDef) string { return d.name })
	if err != nil {
		return err
	}
	d := s.prog.vsets[i]
	var all [][]uint64
	for _, m := range members {
		v := make([]uint64, words(d.bits))
		if !number(v, m, d.bits) {
			return invalid("value set %s: %x is wider than %d bits", name, m, d.bits)
		}
		all = append(all, v)
	}
	s.vsets[i].members = all
	return nil
}

// ValueSet is the members of a parser's value set.
func (s *arrays) ValueSet(name string) ([][]byte, error) {
	i, err := named(s.prog.vsets, "value set", name, func(d *valueSetDef) string { return d.name })
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for _, m := range s.vsets[i].members {
		all = append(all, bigEndian(m, s.vsets[i].def.bits))
	}
	return all, nil
}
