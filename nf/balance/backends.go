package balance

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/table"
)

// state is the state of a backend that the operator has set.
type state uint8

const (
	up    state = iota
	drain       // it keeps its connections and gets no new ones
	down        // its connections go to others
)

var stateNames = []string{"up", "drain", "down"}

type backend struct {
	addr   netip.Addr
	mac    [6]byte
	weight uint16
	state  state
}

func (b *backend) family() uint8 {
	if b.addr.Is4() {
		return hdr.NetIPv4
	}
	return hdr.NetIPv6
}

const maxBackends = 1024

// String returns the backend in the form that parseBackend reads.
func (b backend) String() string {
	s := b.addr.String() + "@" + net.HardwareAddr(b.mac[:]).String()
	if b.weight != 1 {
		s += "*" + strconv.Itoa(int(b.weight))
	}
	if b.state != up {
		s += "/" + stateNames[b.state]
	}
	return s
}

// parseBackend reads IP@MAC[*WEIGHT][/drain|/down].
func parseBackend(v string) (b backend, err error) {
	v, st, ok := strings.Cut(v, "/")
	if ok {
		i := slices.Index(stateNames, st)
		if i < 0 {
			return b, fmt.Errorf("%q is none of up, drain and down", st)
		}
		b.state = state(i)
	}
	v, w, ok := strings.Cut(v, "*")
	b.weight = 1
	if ok {
		n, err := strconv.ParseUint(w, 10, 16)
		if err != nil || n < 1 || n > maxWeight {
			return b, fmt.Errorf("the weight is a number from 1 to %d", maxWeight)
		}
		b.weight = uint16(n)
	}
	ip, mac, _ := strings.Cut(v, "@")
	if b.addr, err = arg.ParseAddr(ip); err != nil {
		return b, err
	}
	b.mac, err = arg.ParseMAC(mac)
	return b, err
}

const maxWeight = 1000

// parseBackends reads backends joined by +.
func parseBackends(v string) (all []backend, err error) {
	if v == "none" {
		return nil, nil
	}
	for x := range arg.Items(v, "+") {
		b, err := parseBackend(x)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", x, err)
		}
		if slices.ContainsFunc(all, func(o backend) bool { return o.addr == b.addr }) {
			return nil, fmt.Errorf("%s is there twice", b.addr)
		}
		all = append(all, b)
	}
	if len(all) > maxBackends {
		return nil, fmt.Errorf("at most %d backends", maxBackends)
	}
	return all, nil
}

// tables declares the backends of both families as settings of backends=.
func tables() []table.Decl {
	params := []table.Field{
		{Name: "mac", Bits: 48, Form: table.MAC, Help: "where its frames go"},
		{Name: "weight", Bits: 10, Help: "its share of new connections, relative to others'"},
	}
	actions := []table.Action{
		up:    {Name: "up", Params: params, Help: "gets connections"},
		drain: {Name: "drain", Params: params, Help: "keeps its connections and gets no new ones"},
		down:  {Name: "down", Params: params, Help: "its connections go to others"},
	}
	decl := func(name, ip string, bits int) table.Decl {
		return table.Decl{
			Name: name, Help: "backends with an " + ip + " address (backends=)",
			Keys:    []table.Field{{Name: "backend", Bits: bits, Form: table.IP, Help: "its address"}},
			Actions: actions, Size: maxBackends,
			May: table.Insert | table.Modify | table.Delete,
			Setting: &table.Setting{
				Arg: "backends",
				Of:  func(args table.Args) table.Rows { return rowsOf(args, bits) },
				Set: func(args table.Args, r table.Rows) (table.Args, error) {
					return setRows(args, r, bits)
				},
			},
		}
	}
	return []table.Decl{decl("backends", "IPv4", 32), decl("backends_ipv6", "IPv6", 128)}
}

// backendsOf returns the backends of args, or none if args are not valid.
func backendsOf(args table.Args) []backend {
	s, err := parse(graph.Args(args))
	if err != nil {
		return nil
	}
	return s.backends
}

func macValue(m [6]byte) table.Value {
	v, _ := table.FromBytes(m[:])
	return v
}

func rowsOf(args table.Args, bits int) (r table.Rows) {
	for _, b := range backendsOf(args) {
		if b.addr.BitLen() == bits {
			r.Entries = append(r.Entries, table.Entry{
				Key:  []table.Cond{{V: table.Addr(b.addr)}},
				Call: table.Call{Action: int(b.state), Params: []table.Value{macValue(b.mac), table.Uint(uint64(b.weight))}},
			})
		}
	}
	return r
}

func setRows(args table.Args, r table.Rows, bits int) (table.Args, error) {
	var all []string
	for _, b := range backendsOf(args) {
		if b.addr.BitLen() != bits {
			all = append(all, b.String())
		}
	}
	for _, e := range r.Entries {
		b := backend{addr: e.Key[0].V.Addr(bits), weight: uint16(e.Params[1].Lo), state: state(e.Action)}
		for i := range b.mac {
			b.mac[i] = byte(e.Params[0].Lo >> (40 - 8*i))
		}
		if _, err := parseBackend(b.String()); err != nil {
			return nil, table.Errorf(table.Invalid, "table backends: %v", err)
		}
		all = append(all, b.String())
	}
	if len(all) > maxBackends {
		return nil, table.Errorf(table.Full, "table backends: at most %d backends of both families", maxBackends)
	}
	if len(all) == 0 {
		return table.Args{"backends": "none"}, nil
	}
	return table.Args{"backends": strings.Join(all, "+")}, nil
}
