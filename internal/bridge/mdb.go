package bridge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// MDBEntry is a multicast group that the administrator joined the port to.
type MDBEntry struct {
	// Entry is struct br_mdb_entry, as the kernel gave it, of no interface.
	Entry []byte `json:"entry"`
	// Source is the address that frames must come from: of an (S,G) entry.
	Source []byte `json:"source,omitempty"`
	// Include: frames from Sources alone, else from all but Sources.
	Include bool     `json:"include,omitempty"`
	Sources [][]byte `json:"sources,omitempty"`
	// Protocol that made it, as of routes.
	Protocol byte `json:"protocol"`
}

// linux/if_bridge.h.
const (
	mdbEntryLen  = 28 // struct br_mdb_entry: ifindex (4), state, flags, vid (2), address (16), its protocol (2), two of padding
	mdbState     = 4
	mdbFlags     = 5
	mdbAddr      = 8
	mdbProto     = 24
	mdbPermanent = 1 // of mdbState
	mdbStarExcl  = 4 // of mdbFlags: follows from a (*,G) entry

	mdbaMDB        = 1 // holds mdbaMDBEntry, which holds mdbaMDBEntryInfo: the entry, and then of mdbaEattr
	mdbaMDBEntry   = 1
	mdbaEntryInfo  = 1
	eattrSrcList   = 2
	eattrGroupMode = 3
	eattrSource    = 4
	eattrRtProt    = 5
	srcListEntry   = 1 // the same in what is set
	srcAttrAddress = 1

	mdbaSetEntry      = 1
	mdbaSetEntryAttrs = 2
	mdbeSource        = 1
	mdbeSrcList       = 2
	mdbeGroupMode     = 3
	mdbeRtProt        = 4
	modeInclude       = 1
)

// String is the group, as bridge mdb has it.
func (e MDBEntry) String() string {
	addr := e.Entry[mdbAddr:]
	switch binary.BigEndian.Uint16(e.Entry[mdbProto:]) {
	case unix.ETH_P_IP:
		return net.IP(addr[:4]).String()
	case unix.ETH_P_IPV6:
		return net.IP(addr[:16]).String()
	}
	return net.HardwareAddr(addr[:6]).String()
}

// portMsg is struct br_port_msg.
type portMsg struct{ index int }

func (portMsg) Len() int { return 8 }
func (m portMsg) Serialize() []byte {
	return binary.NativeEndian.AppendUint32([]byte{unix.AF_BRIDGE, 0, 0, 0}, uint32(m.index))
}

// mdb is the permanent entries of port index of bridge br. A kernel without
// multicast snooping has none.
func mdb(br, index int) ([]MDBEntry, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETMDB, unix.NLM_F_DUMP)
	req.AddData(portMsg{})
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_GETMDB)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("multicast groups: %w", err)
	}
	var all []MDBEntry
	for _, m := range msgs {
		if len(m) < (portMsg{}).Len() || int(binary.NativeEndian.Uint32(m[4:])) != br {
			continue
		}
		for _, group := range nested(nested([][]byte{m[portMsg{}.Len():]}, mdbaMDB), mdbaMDBEntry) {
			for _, info := range nested([][]byte{group}, mdbaEntryInfo) {
				if len(info) < mdbEntryLen || int(binary.NativeEndian.Uint32(info)) != index ||
					info[mdbState] != mdbPermanent || info[mdbFlags]&mdbStarExcl != 0 {
					continue
				}
				all = append(all, parseMDB(info))
			}
		}
	}
	slices.SortFunc(all, func(a, b MDBEntry) int {
		return bytes.Compare(append(slices.Clone(a.Entry), a.Source...), append(slices.Clone(b.Entry), b.Source...))
	})
	return all, nil
}

func parseMDB(info []byte) MDBEntry {
	e := MDBEntry{Entry: bytes.Clone(info[:mdbEntryLen]), Protocol: unix.RTPROT_STATIC}
	clear(e.Entry[:4])
	e.Entry[mdbFlags] = 0
	attrs := [][]byte{info[mdbEntryLen:]}
	for _, v := range nested(attrs, eattrRtProt) {
		e.Protocol = v[0]
	}
	if s := nested(attrs, eattrSource); len(s) > 0 {
		e.Source = bytes.Clone(s[0])
		return e
	}
	for _, v := range nested(attrs, eattrGroupMode) {
		e.Include = v[0] == modeInclude
	}
	for _, s := range nested(nested(nested(attrs, eattrSrcList), srcListEntry), srcAttrAddress) {
		e.Sources = append(e.Sources, bytes.Clone(s))
	}
	slices.SortFunc(e.Sources, bytes.Compare)
	return e
}

// nested is the values of the attributes of a type in the attributes of each of in.
func nested(in [][]byte, typ uint16) (out [][]byte) {
	for _, b := range in {
		attrs, _ := nl.ParseRouteAttr(b)
		for _, a := range attrs {
			if a.Attr.Type&nlaTypeMask == typ && len(a.Value) > 0 {
				out = append(out, a.Value)
			}
		}
	}
	return out
}

// takesGroups says why the groups of a splice's port cannot be set in the bridge now.
func takesGroups(br netlink.Link, s *Splice) error {
	if len(s.Before.MDB) > 0 && br.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("%s is down, and %s has multicast groups, which cannot be set then: ip link set %s up", s.Bridge, s.Port, s.Bridge)
	}
	return nil
}

// setMDB joins port l of br to the groups.
func setMDB(br, l netlink.Link, want []MDBEntry) error {
	var errs []error
	for _, e := range want {
		if len(e.Entry) != mdbEntryLen {
			errs = append(errs, errors.New("the state file has a damaged multicast group"))
			continue
		}
		if err := e.set(br.Attrs().Index, l.Attrs().Index); err != nil {
			errs = append(errs, fmt.Errorf("multicast group %s: %w", e, err))
		}
	}
	return errors.Join(errs...)
}

// set joins the port. What an older kernel need not be told is left out: it
// refuses what it does not know.
func (e MDBEntry) set(br, port int) error {
	entry := bytes.Clone(e.Entry)
	binary.NativeEndian.PutUint32(entry, uint32(port))
	req := nl.NewNetlinkRequest(unix.RTM_NEWMDB, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	req.AddData(portMsg{br})
	req.AddData(nl.NewRtAttr(mdbaSetEntry, entry))
	attrs := nl.NewRtAttr(mdbaSetEntryAttrs|unix.NLA_F_NESTED, nil)
	if e.Source != nil {
		attrs.AddRtAttr(mdbeSource, e.Source)
	}
	if e.Include || e.Sources != nil {
		mode := byte(0)
		if e.Include {
			mode = modeInclude
		}
		attrs.AddRtAttr(mdbeGroupMode, []byte{mode})
	}
	if e.Sources != nil {
		list := attrs.AddRtAttr(mdbeSrcList|unix.NLA_F_NESTED, nil)
		for _, s := range e.Sources {
			list.AddRtAttr(srcListEntry|unix.NLA_F_NESTED, nil).AddRtAttr(srcAttrAddress, s)
		}
	}
	if e.Protocol != unix.RTPROT_STATIC {
		attrs.AddRtAttr(mdbeRtProt, []byte{e.Protocol})
	}
	if e.Source != nil || e.Include || e.Sources != nil || e.Protocol != unix.RTPROT_STATIC {
		req.AddData(attrs)
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EEXIST) {
		return nil // kernels that do not replace, before Linux 6.2
	}
	return err
}
