package conn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// A saved table, all numbers big-endian:
//
//	6 magic | 2 version | 8 time | 4 rows | rows… | 4 CRC-32C of all before
//	row: 4 length of the rest | rowLen fixed fields | the caller's bytes
const (
	stateMagic   = "qlconn"
	stateVersion = 3
	stateHead    = len(stateMagic) + 2 + 8 + 4
	endLen       = 16 + 2 + 4 + 4 + 12 + 2 + 1 + 1 + 1 + 4
	rowLen       = 1 + 1 + 1 + 2 + 2 + 8 + 8 + 3*4 + 2*endLen
)

// Errors of Restore.
var (
	ErrCorrupt = errors.New("saved connections are damaged")
	ErrVersion = errors.New("saved connections are of another version of this program")
	ErrStale   = errors.New("saved connections are too old")
)

func castagnoli(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// AppendState appends the rows that are or were paired to dst, for Restore in the
// next process.
// more, if not nil, appends what the caller wants to keep about a row.
func (t *Table) AppendState(dst []byte, now clock.Time, more func(dst []byte, s Slot) []byte) []byte {
	be := binary.BigEndian
	from := len(dst)
	dst = append(dst, stateMagic...)
	dst = be.AppendUint16(dst, stateVersion)
	dst = be.AppendUint64(dst, uint64(now))
	at, n := len(dst), uint32(0)
	dst = be.AppendUint32(dst, 0)
	for i := range t.rows {
		r := &t.rows[i]
		if !r.used || r.State == HalfOpen {
			continue
		}
		n++
		length := len(dst)
		dst = be.AppendUint32(dst, 0)
		dst = append(dst, byte(r.Learnt), r.Net, flags(r.ready, r.pinned, r.State == Closing))
		dst = be.AppendUint16(dst, r.MTU)
		dst = be.AppendUint16(dst, r.PKey)
		dst = be.AppendUint64(dst, uint64(r.LastSeen))
		dst = be.AppendUint64(dst, r.tid)
		dst = be.AppendUint32(dst, r.sent)
		dst = be.AppendUint32(dst, r.next)
		dst = be.AppendUint32(dst, r.low)
		dst = r.Client.append(dst)
		dst = r.Server.append(dst)
		if more != nil {
			dst = more(dst, Slot(i))
		}
		be.PutUint32(dst[length:], uint32(len(dst)-length-4))
	}
	be.PutUint32(dst[at:], n)
	return be.AppendUint32(dst, castagnoli(dst[from:]))
}

func flags(f ...bool) (v byte) {
	for i, f := range f {
		if f {
			v |= 1 << i
		}
	}
	return v
}

func (e *End) append(dst []byte) []byte {
	be := binary.BigEndian
	dst = be.AppendUint64(dst, e.Addr.hi)
	dst = be.AppendUint64(dst, e.Addr.lo)
	dst = be.AppendUint16(dst, e.Addr.VLAN())
	dst = be.AppendUint32(dst, e.QPN)
	dst = be.AppendUint32(dst, e.StartPSN)
	dst = append(dst, e.L2[:]...)
	dst = be.AppendUint16(dst, e.Port)
	dst = append(dst, e.Resources, e.Depth, flags(e.HasPSN, e.hasComm))
	return be.AppendUint32(dst, e.CommID)
}

func (e *End) read(b []byte) {
	be := binary.BigEndian
	e.Addr = Addr{be.Uint64(b), be.Uint64(b[8:]), uint64(be.Uint16(b[16:]))}
	b = b[18:]
	e.QPN, e.StartPSN = be.Uint32(b), be.Uint32(b[4:])
	e.L2 = [12]byte(b[8:])
	e.Port = be.Uint16(b[20:])
	e.Resources, e.Depth = b[22], b[23]
	e.HasPSN, e.hasComm = b[24]&1 != 0, b[24]&2 != 0
	e.CommID = be.Uint32(b[25:])
}

func (r *Row) read(b []byte) {
	be := binary.BigEndian
	*r = Row{Learnt: Source(b[0]), Net: b[1], ready: b[2]&1 != 0, pinned: b[2]&2 != 0, MTU: be.Uint16(b[3:]), PKey: be.Uint16(b[5:]),
		LastSeen: clock.Time(be.Uint64(b[7:])), tid: be.Uint64(b[15:]), sent: be.Uint32(b[23:]), next: be.Uint32(b[27:]), low: be.Uint32(b[31:]),
		used: true}
	r.Client.read(b[35:])
	r.Server.read(b[35+endLen:])
}

// plausible: what a table could have held.
func (r *Row) plausible() bool {
	switch r.MTU {
	case 0, 256, 512, 1024, 2048, 4096:
	default:
		return false
	}
	for _, e := range []*End{&r.Client, &r.Server} {
		if e.QPN < 2 || e.QPN > 0xFFFFFF || e.StartPSN > hdr.PSNMask || r.Net != hdr.NetGRH && e.Addr.Is4() != (r.Net == hdr.NetIPv4) {
			return false
		}
	}
	vlan := r.Client.Addr.vlan
	return r.Learnt <= Managed && r.Net >= hdr.NetIPv4 && r.Net <= hdr.NetGRH && vlan < 4096 && vlan == r.Server.Addr.vlan && (r.sent|r.next|r.low) <= hdr.PSNMask
}

// Restore fills an empty table with the rows that AppendState saved, if that
// was no longer than maxAge ago. more, if not nil, is given what the caller
// kept about a row; when it fails, so does Restore. After an error the table
// is empty.
func (t *Table) Restore(b []byte, now clock.Time, maxAge clock.Duration, more func(s Slot, data []byte) error) error {
	be := binary.BigEndian
	switch {
	case t.Len() != 0:
		return errors.New("connections can be restored into an empty table only")
	case len(b) < stateHead+4 || !bytes.HasPrefix(b, []byte(stateMagic)):
		return fmt.Errorf("%w: no saved table", ErrCorrupt)
	case be.Uint16(b[len(stateMagic):]) != stateVersion:
		return fmt.Errorf("%w: %d, this is %d", ErrVersion, be.Uint16(b[len(stateMagic):]), stateVersion)
	}
	end := len(b) - 4
	if castagnoli(b[:end]) != be.Uint32(b[end:]) {
		return fmt.Errorf("%w: wrong checksum", ErrCorrupt)
	}
	age := now.Sub(clock.Time(be.Uint64(b[8:])))
	n := int(be.Uint32(b[16:]))
	switch {
	case age < 0:
		return fmt.Errorf("%w: they are of a time %v from now", ErrStale, -age)
	case age > maxAge:
		return fmt.Errorf("%w: saved %v ago, the limit is %v", ErrStale, age, maxAge)
	case n > len(t.rows):
		return fmt.Errorf("%w: %d connections do not fit into %d rows", ErrFull, n, len(t.rows))
	}
	err := t.restore(b[stateHead:end], n, now, more)
	if err != nil {
		for s := range t.rows {
			t.Remove(Slot(s))
		}
	}
	return err
}

func (t *Table) restore(b []byte, n int, now clock.Time, more func(s Slot, data []byte) error) error {
	for i := range n {
		if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) > uint64(len(b)-4) || binary.BigEndian.Uint32(b) < rowLen {
			return fmt.Errorf("%w: row %d is cut off", ErrCorrupt, i+1)
		}
		size := 4 + int(binary.BigEndian.Uint32(b))
		row := b[4:size]
		b = b[size:]
		var r Row
		r.read(row)
		closing := row[2]&4 != 0
		if !r.plausible() || closing && r.Learnt == Inferred {
			return fmt.Errorf("%w: row %d makes no sense", ErrCorrupt, i+1)
		}
		c, v := &r.Client, &r.Server
		if c.Addr == v.Addr || t.find(c.Addr, c.QPN) != noRef || t.find(v.Addr, v.QPN) != noRef ||
			c.hasComm && t.findID(c.Addr, c.CommID) != noRef || v.hasComm && t.findID(v.Addr, v.CommID) != noRef {
			return fmt.Errorf("%w: row %d uses a queue pair twice", ErrCorrupt, i+1)
		}
		r.LastSeen = min(r.LastSeen, now)
		s := t.alloc(now, r.Learnt)
		if s == NoSlot {
			return ErrFull // cannot be: n was compared
		}
		t.rows[s] = r
		for _, client := range []bool{true, false} {
			if e, _ := r.ends(client); e.hasComm {
				t.putID(s, client, e.CommID)
			}
		}
		t.take(s)
		if closing {
			t.rows[s].State = Closing
			t.rows[s].rewatch()
		}
		if more != nil {
			if err := more(s, row[rowLen:]); err != nil {
				return err
			}
		}
	}
	if len(b) != 0 {
		return fmt.Errorf("%w: %d bytes too many", ErrCorrupt, len(b))
	}
	return nil
}
