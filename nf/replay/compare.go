package replay

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/quillon/quillon/nf/port/pcap"
)

// ShownDifferences is the default number of packets that a Comparison shows.
const ShownDifferences = 10

// CompareOptions say how two captures are compared.
type CompareOptions struct {
	// A and B name the captures in the output; "": "got" and "want".
	A, B string
	// Shown is the largest number of packets that are shown; 0: ShownDifferences, negative: none.
	Shown int
	// IgnoreTime excludes timestamps.
	IgnoreTime bool
	// IgnoreComments excludes what only pcapng has: the packets' comments and interfaces. They are always
	// excluded unless both captures are pcapng.
	IgnoreComments bool
}

// PacketDiff shows a packet that differs.
type PacketDiff struct {
	Packet uint64   `json:"packet"` // number, from 1
	Lines  []string `json:"lines"`
}

// Comparison is the result of Compare.
type Comparison struct {
	A           string       `json:"a"`
	B           string       `json:"b"`
	PacketsA    uint64       `json:"packets_a"`
	PacketsB    uint64       `json:"packets_b"`
	Differences uint64       `json:"differences"` // packets that differ, or are in one capture only
	Shown       []PacketDiff `json:"shown"`
}

// Equal reports whether nothing differs.
func (c *Comparison) Equal() bool { return c.Differences == 0 }

// String shows the differences, decoded, or one line if there are none.
func (c *Comparison) String() string {
	var s strings.Builder
	if c.Equal() {
		fmt.Fprintf(&s, "%d packets, no difference\n", c.PacketsA)
		return s.String()
	}
	for _, d := range c.Shown {
		fmt.Fprintf(&s, "packet %d\n", d.Packet)
		for _, l := range d.Lines {
			fmt.Fprintf(&s, "  %s\n", l)
		}
	}
	if more := c.Differences - uint64(len(c.Shown)); more > 0 {
		fmt.Fprintf(&s, "and %d packets more\n", more)
	}
	fmt.Fprintf(&s, "%d packets differ (%s has %d, %s has %d)\n", c.Differences, c.A, c.PacketsA, c.B, c.PacketsB)
	return s.String()
}

// DifferentError says that two captures differ. It stands for a check that failed, not for a wrong use.
type DifferentError struct{ *Comparison }

func (e *DifferentError) Error() string {
	return fmt.Sprintf("%d packets differ (%s has %d, %s has %d)", e.Differences, e.A, e.PacketsA, e.B, e.PacketsB)
}

// Compare reads two captures side by side, in constant memory. Packet by packet it compares the frame, its
// length on the wire, its time to the precision that both files have, the number of its interface, and its
// comments. It returns an error if one of the captures cannot be read.
func Compare(a, b *pcap.Reader, o CompareOptions) (*Comparison, error) {
	c := &Comparison{A: o.A, B: o.B, Shown: []PacketDiff{}}
	c.A = cmp.Or(c.A, "got")
	c.B = cmp.Or(c.B, "want")
	shown := max(0, cmp.Or(o.Shown, ShownDifferences))
	o.IgnoreComments = o.IgnoreComments || a.Header().Format != pcap.NG || b.Header().Format != pcap.NG
	var p, q pcap.Packet
	for {
		errA, errB := a.Next(&p), b.Next(&q)
		if errA != nil && errA != io.EOF {
			return c, fmt.Errorf("%s: %w", c.A, errA)
		}
		if errB != nil && errB != io.EOF {
			return c, fmt.Errorf("%s: %w", c.B, errB)
		}
		if errA == nil {
			c.PacketsA++
		}
		if errB == nil {
			c.PacketsB++
		}
		var lines []string
		switch {
		case errA != nil && errB != nil:
			return c, nil
		case errA != nil:
			if c.Differences < uint64(shown) {
				lines = append([]string{"only in " + c.B}, summary(q.Data)...)
			}
		case errB != nil:
			if c.Differences < uint64(shown) {
				lines = append([]string{"only in " + c.A}, summary(p.Data)...)
			}
		default:
			ta, tb := p.Time, q.Time
			if g := max(unit(a, &p), unit(b, &q)); g > 1 {
				ta, tb = ta/g, tb/g
			}
			timeDiffers := !o.IgnoreTime && ta != tb
			commentDiffers := !o.IgnoreComments && !bytes.Equal(bytes.Join(p.Comments, newline), bytes.Join(q.Comments, newline))
			ifaceDiffers := !o.IgnoreComments && p.Interface != q.Interface
			if !timeDiffers && !commentDiffers && !ifaceDiffers && p.OrigLen == q.OrigLen && bytes.Equal(p.Data, q.Data) {
				continue
			}
			if c.Differences < uint64(shown) {
				var t table
				if timeDiffers {
					t.row("time", stamp(p.Time), stamp(q.Time))
				}
				if p.OrigLen != q.OrigLen {
					t.row("original length", fmt.Sprint(p.OrigLen), fmt.Sprint(q.OrigLen))
				}
				if ifaceDiffers {
					t.row("interface", interfaceOf(a, &p), interfaceOf(b, &q))
				}
				if commentDiffers {
					t.row("comment", quoted(p.Comments), quoted(q.Comments))
				}
				t.frames(p.Data, q.Data)
				lines = t.lines(c.A, c.B)
			}
		}
		c.Differences++
		if lines != nil {
			c.Shown = append(c.Shown, PacketDiff{max(c.PacketsA, c.PacketsB), lines})
		}
	}
}

// CompareFiles compares two files. If they differ, the error is a *DifferentError.
func CompareFiles(a, b string, o CompareOptions) (*Comparison, error) {
	var r [2]*pcap.Reader
	for i, name := range []string{a, b} {
		f, err := openFile(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if r[i], err = pcap.NewReader(f); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	o.A = cmp.Or(o.A, a)
	o.B = cmp.Or(o.B, b)
	c, err := Compare(r[0], r[1], o)
	if err == nil && !c.Equal() {
		err = &DifferentError{c}
	}
	return c, err
}
