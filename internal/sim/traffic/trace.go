package traffic

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port/pcap"
)

// Opener opens a trace at its beginning.
type Opener func() (io.ReadCloser, error)

// By says who the endpoints of a capture are.
type By uint8

// Endpoints of a capture: source addresses of Ethernet frames, or of the IP
// packets in them (of frames with none, of the frames).
const (
	ByIP By = iota
	ByMAC
)

// Open is a trace in a file, whose name is for errors: a capture if it begins
// like one, else CSV.
func Open(name string, open Opener, by By) (Source, error) {
	f, err := open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, 4)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if n == 0 {
		return nil, fmt.Errorf("%s is empty", name)
	}
	if slices.Contains([]string{"\xa1\xb2\xc3\xd4", "\xd4\xc3\xb2\xa1", "\xa1\xb2\x3c\x4d", "\x4d\x3c\xb2\xa1", "\x0a\x0d\x0d\x0a"}, string(head[:n])) {
		return &capture{name: name, open: open, by: by}, nil
	}
	return &csv{name: name, open: open}, nil
}

// File is a trace in a regular file, which may be read more than once. told may
// be nil; each time the file is read it is told how many of its bytes have been,
// about once a megabyte.
func File(name string, by By, progress func(read, size int64)) (Source, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file: it is read more than once", name)
	}
	return Open(name, func() (io.ReadCloser, error) {
		f, err := os.Open(name)
		if err != nil || progress == nil {
			return f, err
		}
		return &counted{File: f, size: st.Size(), progress: progress}, nil
	}, by)
}

// counted tells how much of a file was read.
type counted struct {
	*os.File
	read, next, size int64
	progress         func(read, size int64)
}

// Read implements io.Reader.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.File.Read(b)
	if c.read += int64(n); c.read >= c.next {
		c.next = c.read + 1<<20
		c.progress(c.read, c.size)
	}
	return n, err
}

// roster numbers endpoints.
type roster struct {
	ids map[string]int // by rack, a zero byte, name
	who []Endpoint
	key []byte
}

func (r *roster) Endpoints() []Endpoint { return r.who }

func (r *roster) id(name, rack []byte) (int, error) {
	r.key = append(append(append(r.key[:0], rack...), 0), name...)
	if id, ok := r.ids[string(r.key)]; ok {
		return id, nil
	}
	if r.ids == nil {
		r.ids = map[string]int{}
	}
	if len(r.who) == MaxEndpoints {
		return 0, fmt.Errorf("more than %d endpoints", MaxEndpoints)
	}
	id := len(r.who)
	r.ids[string(r.key)] = id
	r.who = append(r.who, Endpoint{Name: string(name), Rack: string(rack)})
	return id, nil
}

// csv is a trace as text.
type csv struct {
	roster
	name string
	open Opener
}

// maxLine bounds a line.
const maxLine = 4096

func (c *csv) Each(yield func(Event) error) error {
	f, err := c.open()
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<16)
	first, seen := true, false
	for n := 1; ; n++ {
		line, err := r.ReadSlice('\n')
		end := errors.Is(err, io.EOF)
		if err != nil && !end && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("%s line %d: %w", c.name, n, err)
		}
		if len(line) > maxLine {
			return fmt.Errorf("%s line %d: longer than %d bytes; is this a trace?", c.name, n, maxLine)
		}
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			e, err := c.parse(line)
			switch {
			case err == nil:
				err = yield(e)
				seen = true
			case first && errors.Is(err, errTime):
				err = nil // the header
			}
			if err != nil {
				return fmt.Errorf("%s line %d: %w", c.name, n, err)
			}
			first = false
		}
		if end {
			if !seen {
				return fmt.Errorf("%s has no events: a line is time,endpoint,bytes", c.name)
			}
			return nil
		}
	}
}

var errTime = errors.New("is no time: seconds are wanted")

func (c *csv) parse(line []byte) (Event, error) {
	var f [5][]byte
	n := 0
	for rest, more := line, true; more && n < len(f); n++ {
		f[n], rest, more = bytes.Cut(rest, []byte{','})
		f[n] = bytes.TrimSpace(f[n])
		if k := len(f[n]); k >= 2 && f[n][0] == '"' && f[n][k-1] == '"' {
			f[n] = f[n][1 : k-1]
		}
	}
	at, err := seconds(f[0])
	if err != nil {
		return Event{}, err
	}
	if n < 3 || n > 4 {
		return Event{}, fmt.Errorf("%d fields; time,endpoint,bytes or time,endpoint,bytes,rack are wanted", n)
	}
	if len(f[1]) == 0 {
		return Event{}, errors.New("no name of an endpoint")
	}
	b, err := number(f[2])
	if err != nil || b < 0 || math.IsNaN(b) || math.IsInf(b, 0) {
		return Event{}, fmt.Errorf("%q is no number of bytes", f[2])
	}
	id, err := c.id(f[1], f[3])
	return Event{Time: at, Endpoint: id, Bytes: b}, err
}

// number parses without an allocation what most numbers are.
func number(b []byte) (float64, error) {
	n := 0.0
	for _, d := range b {
		if d < '0' || d > '9' || len(b) > 15 {
			return strconv.ParseFloat(string(b), 64)
		}
		n = 10*n + float64(d-'0')
	}
	if len(b) == 0 {
		return 0, strconv.ErrSyntax
	}
	return n, nil
}

// latest is the greatest number of seconds of a time.
const latest = 1 << 33

// seconds parses a decimal exactly to the nanosecond.
func seconds(b []byte) (clock.Time, error) {
	whole, fraction, _ := bytes.Cut(b, []byte{'.'})
	t, unit := int64(0), int64(1e9)
	for i, d := range whole {
		if d < '0' || d > '9' || i > 10 {
			return otherSeconds(b)
		}
		t = 10*t + int64(d-'0')
	}
	if len(b) == 0 || len(b) == 1 && b[0] == '.' {
		return otherSeconds(b)
	}
	if t > latest {
		return 0, fmt.Errorf("time %s is out of range: seconds are wanted", b)
	}
	t *= 1e9
	for _, d := range fraction {
		if d < '0' || d > '9' {
			return otherSeconds(b)
		}
		unit /= 10
		t += int64(d-'0') * unit
	}
	return clock.Time(t), nil
}

// otherSeconds is for times with a sign or an exponent.
func otherSeconds(b []byte) (clock.Time, error) {
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.IsNaN(v) {
		return 0, fmt.Errorf("%q %w", b, errTime)
	}
	if math.Abs(v) > latest {
		return 0, fmt.Errorf("time %s is out of range: seconds are wanted", b)
	}
	return clock.Time(math.Round(v * 1e9)), nil
}

// capture is a trace of frames.
type capture struct {
	roster
	name string
	open Opener
	by   By
	mac  map[[6]byte]int
	ip   map[netip.Addr]int
}

func (c *capture) Each(yield func(Event) error) error {
	f, err := c.open()
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := pcap.NewReader(f)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	var p pcap.Packet
	seen := false
	for {
		switch err := r.Next(&p); {
		case errors.Is(err, io.EOF):
			if !seen {
				return fmt.Errorf("%s has no frames", c.name)
			}
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if link := r.Interfaces()[p.Interface].Link; link != pcap.LinkEthernet {
			return fmt.Errorf("%s, frame %d: link type %d; only Ethernet is read", c.name, p.Number, link)
		}
		if len(p.Data) < hdr.EthernetLen {
			continue
		}
		id, err := c.source(p.Data)
		if err == nil {
			seen = true
			err = yield(Event{Time: p.Time, Endpoint: id, Bytes: float64(p.OrigLen)})
		}
		if err != nil {
			return fmt.Errorf("%s, frame %d: %w", c.name, p.Number, err)
		}
	}
}

// source is who sent frame b, which may have been cut off behind its headers.
func (c *capture) source(b []byte) (int, error) {
	if c.by == ByIP {
		var l hdr.Layers
		var a netip.Addr
		if hdr.Walk(b, &l) {
			switch net := b[l.Net:]; {
			case l.EtherType == hdr.EtherIPv4 && len(net) >= 20 && net[0]>>4 == 4:
				a = hdr.IPv4(net).Src()
			case l.EtherType == hdr.EtherIPv6 && len(net) >= 40 && net[0]>>4 == 6:
				a = hdr.IPv6(net).Src()
			}
		}
		if a.IsValid() {
			if id, ok := c.ip[a]; ok {
				return id, nil
			}
			id, err := c.id([]byte(a.String()), nil)
			if c.ip == nil {
				c.ip = map[netip.Addr]int{}
			}
			if err == nil {
				c.ip[a] = id
			}
			return id, err
		}
	}
	a := hdr.Ethernet(b).Src()
	if id, ok := c.mac[a]; ok {
		return id, nil
	}
	var s strings.Builder
	for i, x := range a {
		if i > 0 {
			s.WriteByte(':')
		}
		fmt.Fprintf(&s, "%02x", x)
	}
	id, err := c.id([]byte(s.String()), nil)
	if c.mac == nil {
		c.mac = map[[6]byte]int{}
	}
	if err == nil {
		c.mac[a] = id
	}
	return id, err
}

// Step is the time that lines stand for, as the trace's beginning has it: the
// shortest between two of one endpoint, if most others are multiples of it; or
// what all times are multiples apart, if that is longer. An interval that is
// shorter makes peaks of what the trace has added up already. In a trace of
// packets it is a short time, or 0.
func Step(s Source) (clock.Duration, error) {
	const look = 1 << 14
	enough := errors.New("enough")
	last := map[int]clock.Time{}
	var gaps []clock.Duration
	var first clock.Time
	grid := clock.Duration(0)
	n := 0
	err := s.Each(func(e Event) error {
		if n == 0 {
			first = e.Time
		}
		for a := e.Time.Sub(first).Abs(); a != 0; {
			grid, a = a, grid%a
		}
		if at, ok := last[e.Endpoint]; ok && e.Time > at {
			gaps = append(gaps, e.Time.Sub(at))
		}
		last[e.Endpoint] = e.Time
		if n++; n == look {
			return enough
		}
		return nil
	})
	if err != nil && !errors.Is(err, enough) {
		return 0, err
	}
	if len(gaps) == 0 {
		return grid, nil
	}
	step, fit := slices.Min(gaps), 0
	for _, g := range gaps {
		if off := g % step; min(off, step-off) <= step/50 {
			fit++
		}
	}
	if fit*10 < len(gaps)*9 {
		return grid, nil
	}
	return max(step, grid), nil
}
