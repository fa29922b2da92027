package arg

import (
	"encoding"
	"fmt"
	"math"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// Param describes one argument.
type Param struct {
	Name    string `json:"name"`
	Default string `json:"default,omitempty"`
	Help    string `json:"help"`
	// File: it names a file of this machine.
	File bool `json:"file,omitempty"`
}

// Set declares arguments once: as the fields of a struct T. Its zero value is of no use.
type Set[T any] struct {
	kind   string
	byDef  T
	fields []field
	params []Param
}

// field is an argument: where its value lies in a T, and how it is read.
type field struct {
	name, need string
	typ        reflect.Type
	offset     uintptr
	read       reading  // nil: the caller reads it
	words      []string // that leave the value as it is
}

// reading reads an argument into what p points to.
type reading func(v string, p any) error

// into is a reading of what parse returns.
func into[T any](parse func(v string) (T, error)) reading {
	return func(v string, p any) (err error) {
		x, err := parse(v)
		if err == nil {
			*p.(*T) = x
		}
		return err
	}
}

// Declare is the Set of the fields of T that have a tag arg; byDef has their
// values where no argument is given. Fields may be unexported. The tags:
//
//	arg:"mtu"            the argument's name; of an array, the names of its elements
//	help:"longest …"     what it is
//	range:"576..65535"   limits of a number, a duration or a rate: a side may be left out; 2^24-1 is a number
//	unit:"1024"          a number may have k, M or G behind it, for powers of 1000 or 1024
//	words:"pass drop"    of a bool or a small number: the word for 0, that for 1, and so on
//	keep:"none any"      words that stand for the value that is there, byDef's; the first is shown as the default
//	default:"as cbs"     what is shown as the default, where byDef does not tell; "-": nothing
//	need:"a hint"        it must be given; the hint is a part of the error
//	file:"true"          it names a file of this machine
//	own:"true"           it is declared only: the caller reads it (Reader.Func)
//
// Numbers may be hexadecimal. A netip.Addr is read by ParseAddr, a [6]byte by ParseMAC, types other than numbers, durations,
// bool and string by their UnmarshalText, and slices of these element by element, as Items of +. The fields of a struct without a tag are taken, too. Declare panics when a tag makes no sense.
func Declare[T any](kind string, byDef T) *Set[T] {
	s := &Set[T]{kind: kind, byDef: byDef}
	t := reflect.TypeFor[T]()
	s.add(t, 0, unsafe.Pointer(&s.byDef))
	return s
}

// Params are the arguments, in the order of the fields.
func (s *Set[T]) Params() []Param { return slices.Clone(s.params) }

// Read reads args into settings. The caller checks what concerns several arguments, and reports that to the Reader; then it
// asks the Reader for Err.
func (s *Set[T]) Read(args map[string]string) (T, *Reader) {
	v, r := s.byDef, &Reader{kind: s.kind, args: args}
	for _, f := range s.fields {
		if f.read == nil {
			r.read = append(r.read, f.name)
			continue
		}
		p := reflect.NewAt(f.typ, unsafe.Add(unsafe.Pointer(&v), f.offset)).Interface()
		r.Func(f.name, func(v string) error { return f.read(v, p) }, f.words...)
	}
	for _, f := range s.fields {
		if f.need != "" {
			r.Need(f.name, f.need)
		}
	}
	return v, r
}

// add takes the fields of struct t, which lies at offset in a T; at is where byDef has it.
func (s *Set[T]) add(t reflect.Type, offset uintptr, at unsafe.Pointer) {
	for i := range t.NumField() {
		f := t.Field(i)
		names, ok := f.Tag.Lookup("arg")
		if !ok {
			if f.Type.Kind() == reflect.Struct && f.Type.NumField() > 0 {
				s.add(f.Type, offset+f.Offset, unsafe.Add(at, f.Offset))
			}
			continue
		}
		list := strings.Fields(names)
		typ := f.Type
		if len(list) > 1 {
			if typ.Kind() != reflect.Array || typ.Len() != len(list) {
				panic(fmt.Sprintf("%s: field %s has %d names", s.kind, f.Name, len(list)))
			}
			typ = typ.Elem()
		}
		for k, name := range list {
			d := f.Offset + uintptr(k)*typ.Size()
			s.take(name, typ, f.Tag, offset+d, reflect.NewAt(typ, unsafe.Add(at, d)))
		}
	}
}

// take takes one argument, whose value by default byDef points to.
func (s *Set[T]) take(name string, t reflect.Type, tag reflect.StructTag, offset uintptr, byDef reflect.Value) {
	f := field{name: name, need: tag.Get("need"), typ: t, offset: offset, words: strings.Fields(tag.Get("keep"))}
	p := Param{Name: name, Help: tag.Get("help"), File: tag.Get("file") == "true", Default: tag.Get("default")}
	show := func() string { return "" }
	if tag.Get("own") != "true" {
		var err error
		if f.read, show, err = how(t, tag, byDef.Interface()); err != nil {
			panic(fmt.Sprintf("%s: argument %s: %v", s.kind, name, err))
		}
	}
	switch {
	case p.Default == "-":
		p.Default = ""
	case p.Default == "" && len(f.words) > 0:
		p.Default = f.words[0]
	case p.Default == "" && f.need == "":
		p.Default = show()
	}
	s.fields, s.params = append(s.fields, f), append(s.params, p)
}

// how is how an argument of type t is read, and how the value that p points to is shown.
func how(t reflect.Type, tag reflect.StructTag, p any) (read reading, show func() string, err error) {
	v := reflect.ValueOf(p).Elem()
	words := strings.Fields(tag.Get("words"))
	switch p := p.(type) {
	case *time.Duration:
		least, most, err := durations(tag.Get("range"))
		return into(func(v string) (time.Duration, error) { return duration(v, least, most) }), func() string { return short(*p) }, err
	case *netip.Addr:
		return into(ParseAddr), func() string { return "" }, nil
	case *[6]byte:
		return into(ParseMAC), func() string {
			if *p == ([6]byte{}) {
				return ""
			}
			return net.HardwareAddr(p[:]).String()
		}, nil
	case *string:
		return into(func(v string) (string, error) { return v, nil }), func() string { return *p }, nil
	case *bool:
		if len(words) != 2 {
			return nil, nil, fmt.Errorf("want two words")
		}
		names := words
		if words[0] == "off" && words[1] == "on" {
			names = []string{"on", "off"}
		}
		return into(func(v string) (bool, error) {
			_, err := choice(v, names)
			return v == words[1], err
		}), func() string { return words[index(*p)] }, nil
	case encoding.TextUnmarshaler:
		show = func() string {
			if m, ok := p.(encoding.TextMarshaler); ok {
				text, _ := m.MarshalText()
				return string(text)
			}
			return ""
		}
		return func(v string, p any) error { return p.(encoding.TextUnmarshaler).UnmarshalText([]byte(v)) }, show, nil
	}
	switch {
	case t.Kind() == reflect.Slice:
		return list(t, tag, v)
	case !v.CanInt() && !v.CanUint():
		return nil, nil, fmt.Errorf("of type %v", t)
	}
	if len(words) > 0 {
		return func(v string, p any) error {
			i, err := choice(v, words)
			return set(p, int64(i), err)
		}, func() string { return words[get(v)] }, nil
	}
	return numbers(t, tag, v)
}

// list is how for slices.
func list(t reflect.Type, tag reflect.StructTag, v reflect.Value) (read reading, show func() string, err error) {
	one, _, err := how(t.Elem(), tag, reflect.New(t.Elem()).Interface())
	if err != nil {
		return nil, nil, err
	}
	show = func() string {
		var all []string
		for i := range v.Len() {
			_, element, _ := how(t.Elem(), tag, v.Index(i).Addr().Interface())
			all = append(all, element())
		}
		return strings.Join(all, "+")
	}
	return func(v string, p any) error {
		to := reflect.ValueOf(p).Elem()
		to.SetZero()
		for x := range Items(v, "+") {
			e := reflect.New(t.Elem())
			if err := one(x, e.Interface()); err != nil {
				return fmt.Errorf("%q: %w", clip(x), err)
			}
			to.Set(reflect.Append(to, e.Elem()))
		}
		return nil
	}, show, nil
}

// numbers is how for numbers.
func numbers(t reflect.Type, tag reflect.StructTag, v reflect.Value) (read reading, show func() string, err error) {
	low, high, _ := strings.Cut(tag.Get("range"), "..")
	least, most := int64(0), int64(math.MaxInt64)
	if bits := t.Bits(); v.CanInt() {
		least, most = -1<<(bits-1), 1<<(bits-1)-1
	} else if bits < 64 {
		most = 1<<bits - 1
	}
	for text, p := range map[string]*int64{low: &least, high: &most} {
		if text == "" {
			continue
		}
		if *p, err = constant(text); err != nil {
			return nil, nil, err
		}
	}
	switch unit := tag.Get("unit"); unit {
	case "":
		return func(v string, p any) error {
			n, err := number(v, least, most)
			return set(p, n, err)
		}, func() string { return strconv.FormatInt(get(v), 10) }, nil
	case "1000", "1024":
		step, _ := strconv.ParseInt(unit, 10, 64)
		return func(v string, p any) error {
			n, err := ParseScaled(v, step, least, most)
			return set(p, n, err)
		}, func() string { return scale(get(v), step) }, nil
	case "bit":
		return func(v string, p any) error {
			n, err := ParseRate(v, uint64(least), uint64(most))
			return set(p, int64(n), err)
		}, func() string { return formatUnits(uint64(get(v)), unit) }, nil
	default:
		return nil, nil, fmt.Errorf("unit %q", unit)
	}
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// get is a number of any type.
func get(v reflect.Value) int64 {
	if v.CanInt() {
		return v.Int()
	}
	return int64(v.Uint())
}

// set sets the number of any type that p points to, unless there is an error, which it returns.
func set(p any, n int64, err error) error {
	switch v := reflect.ValueOf(p).Elem(); {
	case err != nil:
	case v.CanInt():
		v.SetInt(n)
	default:
		v.SetUint(uint64(n))
	}
	return err
}

// constant is a number of a tag: decimal, 2^N or 2^N-1.
func constant(text string) (int64, error) {
	if power, ok := strings.CutPrefix(text, "2^"); ok {
		power, less := strings.CutSuffix(power, "-1")
		n, err := strconv.ParseUint(power, 10, 6)
		return 1<<n - int64(index(less)), err
	}
	if digits, zeros, ok := strings.Cut(text, "e"); ok {
		d, err := strconv.ParseInt(digits, 10, 64)
		n, err2 := strconv.ParseUint(zeros, 10, 4)
		if err == nil {
			err = err2
		}
		for range n {
			d *= 10
		}
		return d, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// durations are the limits of a tag.
func durations(text string) (least, most time.Duration, err error) {
	low, high, ok := strings.Cut(text, "..")
	most = Longest
	if !ok {
		return 0, 0, fmt.Errorf("range %q", text)
	}
	if low != "" {
		least, err = time.ParseDuration(low)
	}
	if high != "" && err == nil {
		most, err = time.ParseDuration(high)
	}
	return least, most, err
}
