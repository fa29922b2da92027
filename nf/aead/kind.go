package aead

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gaissmai/bart"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/mtu"
	"github.com/quillon/quillon/nf/port"
)

// Reasons: of frames that were rewritten, that passed, that were dropped.
const (
	reasonProtected graph.Reason = iota
	reasonOpened
	reasonTold

	reasonNotIP
	reasonNeighbour
	reasonNoSA
	reasonUnknownSA
	reasonClear

	reasonMalformed
	reasonOther
	reasonFragment
	reasonTooBig
	reasonNoRoom
	reasonExpired
	reasonNotOnDisk
	reasonUnprotected
	reasonBadESP
	reasonReplay
	reasonForged
	reasonBadPadding
	reasonDummy
	reasonNotTunnel
	reasonNotCovered
	reasonECN
	numReasons

	firstPassed  = reasonNotIP
	firstDropped = reasonMalformed
)

var reasons = [numReasons]counter.Def{
	reasonProtected:   {Name: "protected", Help: "encrypted"},
	reasonOpened:      {Name: "opened", Help: "verified and decrypted"},
	reasonTold:        {Name: "told-too-big", Help: "made: an ICMP error that tells the sender of a packet that was too big how long a packet may be"},
	reasonNotIP:       {Name: "not-ip", Help: "passed: neither IPv4 nor IPv6"},
	reasonNeighbour:   {Name: "neighbour-discovery", Help: "passed: neighbour or router discovery"},
	reasonNoSA:        {Name: "no-sa", Help: "passed in the clear: no SA covers the destination (out=, other=)"},
	reasonUnknownSA:   {Name: "unknown-sa", Help: "passed: ESP that is not of an SA of ours"},
	reasonClear:       {Name: "clear", Help: "passed: not ESP, from a source that no SA covers"},
	reasonMalformed:   {Name: "malformed", Help: "dropped: IP whose header, checksum or length is wrong, or more than two VLAN tags"},
	reasonOther:       {Name: "other", Help: "dropped: no SA covers the destination, and other=drop"},
	reasonFragment:    {Name: "fragment", Help: "dropped: a fragment, to be protected in transport mode or of what was protected"},
	reasonTooBig:      {Name: "too-big", Help: "dropped: longer than mtu= when protected"},
	reasonNoRoom:      {Name: "no-room", Help: "dropped: the port's buffers have no room for what is added"},
	reasonExpired:     {Name: "expired", Help: "dropped: the SA has sent as many packets as it may (lifetime=): it needs a new key"},
	reasonNotOnDisk:   {Name: "not-on-disk", Help: "dropped: the journal does not have numbers for more packets of the SA yet, or cannot be written (iv=sequence)"},
	reasonUnprotected: {Name: "unprotected", Help: "dropped: not ESP, from a source that an SA covers (in=)"},
	reasonBadESP:      {Name: "bad-esp", Help: "dropped: too short for ESP, or not a multiple of 4 bytes"},
	reasonReplay:      {Name: "replay", Help: "dropped: the sequence number was received already, or is older than the window"},
	reasonForged:      {Name: "forged", Help: "dropped: the integrity check value is wrong: changed on the way, or another key"},
	reasonBadPadding:  {Name: "bad-padding", Help: "dropped: authentic, but its padding is wrong"},
	reasonDummy:       {Name: "dummy", Help: "dropped: a dummy packet, sent to hide how much is sent"},
	reasonNotTunnel:   {Name: "not-tunnel", Help: "dropped: authentic, but there is no IP packet inside (mode=)"},
	reasonNotCovered:  {Name: "not-covered", Help: "dropped: authentic, but from a source that its SA does not cover (in=)"},
	reasonECN:         {Name: "ecn", Help: "dropped: congestion was met in the tunnel and the inner packet cannot say so (RFC 6040)"},
}

const (
	ctrMSS counter.ID = iota
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrMSS: {Name: "mss-lowered", Help: "TCP SYNs whose maximum segment size was lowered (mss=)"},
}

// Kinds of trace records: SPI, sequence number, payload bytes.
const (
	traceProtected uint16 = iota
	traceOpened
)

// describe implements graph.Kind.Describe: it returns the text of a trace record.
func describe(_ graph.App, kind uint16, x [4]uint64) string {
	what := "protected"
	if kind == traceOpened {
		what = "opened"
	}
	return fmt.Sprintf("%s %d bytes by 0x%x, number %d", what, x[2], x[0], x[1])
}

// Kind returns the declaration of the network function "aead".
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "aead",
		Summary: "encrypt and authenticate packets: IPsec ESP with AES-GCM",
		Doc: `Packets from a to b whose destination a security association (SA) of out=
covers leave as ESP (RFC 4303) under AES-GCM (RFC 4106); ESP from b to a, of an
SA of in=, is verified, decrypted and leaves as it was. The other end is
another aead, with out= and in= exchanged, or any IPsec with manual keys, as

    ip xfrm state add src 10.0.1.1 dst 10.0.2.1 proto esp spi 0x100 mode transport \
      aead "rfc4106(gcm(aes))" 0xKEYANDSALT 128 replay-window 128

Keys are in a file that only its owner may read, a line an SA: the SPI, and the
AES key of 16, 24 or 32 bytes followed by 4 bytes of salt in hexadecimal digits:

    0x100 8d3c1ce01bff5dd62a3a4d9cc8b1c5c0a1b2c3d4   # to the other side
    0x200 51f02f4fdd4f9e7b1b1b79d40f5cf9e3deadbeef   # and back

    quillon run --inline eth1,eth2 --nf aead,keys=/etc/quillon/esp.keys,out=0x100@10.0.2.0/24,in=0x200@10.0.2.0/24
    quillon replay in.pcap --nf aead,keys=esp.keys,out=0x100@10.0.2.0/24,iv=sequence

A covered packet never leaves in the clear, nor is a covered source believed in
the clear; while the process is gone nothing crosses in its place. Keys are
changed while running: give the file the new ones under new SPIs, add those to
in= at both ends, then change out=.

What is too long once protected (mtu=) is dropped, and its sender told so by ICMP,
in the name of the packet's destination: of 1500 bytes 34 are ESP's in transport
mode, 54 the tunnel's over IPv4, 74 over IPv6. IPv4 without DF is not fragmented:
it is dropped and no more. mss=auto has TCP ask for no more than fits.

Port a is the plain side, port b the protected one.`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Describe: describe,
		Note: func(args graph.Args) string {
			cfg, err := parseArgs(args)
			if err != nil {
				return ""
			}
			return mtu.Note(cfg.inner(), cfg.mtu, cfg.mss)
		},
		Effects: graph.Always(effect.Unknown),
		New:     newApp,
	}
}

// inSA is an inbound SA (in=) with its selector.
type inSA struct {
	sa   *sa
	from netip.Prefix // invalid: any
}

func (s *inSA) covers(src netip.Addr) bool { return !s.from.IsValid() || s.from.Contains(src) }

// selected is the SPI and the selector of an SA, as an argument gives them.
type selected struct {
	spi uint32
	at  netip.Prefix
}

// config is the compiled form of the arguments.
type config struct {
	settings
	sends, takes []selected
	mss          mtu.MSS

	out     bart.Fast[*sa]
	in      map[uint32]*inSA
	covered bart.Fast[struct{}] // sources of in
}

// settings are the arguments, as they are given.
type settings struct {
	keys     string     `arg:"keys" file:"true" help:"the file of keys (see above); read again at every change of arguments"`
	_        struct{}   `arg:"out" own:"true" help:"SAs from a to b, as SPI@DESTINATION+...: 0x100@10.0.2.0/24+0x101@2001:db8:2::/48; the longest prefix counts; can be changed while running"`
	_        struct{}   `arg:"in" own:"true" help:"SAs from b to a, as SPI@SOURCE+... or SPI for any source; can be changed while running"`
	tunnel   bool       `arg:"mode" words:"transport tunnel" help:"transport, or tunnel: the whole packet inside a new one from local to remote; can be changed while running"`
	local    netip.Addr `arg:"local" help:"tunnel: this end's address"`
	remote   netip.Addr `arg:"remote" help:"tunnel: the other end's"`
	esn      bool       `arg:"esn" words:"off on" help:"on: sequence numbers of 64 bits (RFC 4304); both ends alike"`
	window   int        `arg:"window" range:"64..1024" help:"newest sequence numbers among which packets may arrive in any order: a multiple of 64, to 1024"`
	lifetime uint64     `arg:"lifetime" range:"1..2^40" default:"4294967295, with esn=on 1099511627776" help:"packets that an SA may send, at most the default; can be changed while running"`
	mtu      int        `arg:"mtu" range:"68..65535" help:"the longest IP packet to send, protected; can be changed while running"`
	mtu.Setting
	dropOther bool `arg:"other" words:"pass drop" help:"IP from a that no SA covers: pass in the clear, or drop; can be changed while running"`
	randomIV  bool `arg:"iv" words:"sequence random" help:"where IVs begin; sequence: at 0, so that output repeats: only with keys that are new at every start"`
	keep      bool `arg:"keep" words:"off on" help:"keep sequence numbers beyond the process, where the instance has a state file; off: do not, and start with new keys"`
}

var arguments = arg.Declare("", settings{randomIV: true, keep: true, window: 128, mtu: 1500})

// outerLen returns the length of a tunnel's outer header.
func (cfg *config) outerLen() int {
	if cfg.local.Is6() {
		return hdr.IPv6Len
	}
	return hdr.IPv4Len
}

// inner returns the length of the longest IP packet that is not longer than mtu after it was protected. It does
// not depend on headers in front of ESP, because their lengths are multiples of 4 bytes.
func (cfg *config) inner() int {
	n := cfg.mtu - espLen - ivLen - icvLen
	if cfg.tunnel {
		n -= cfg.outerLen()
	}
	return n&^3 - trailerLen
}

// The largest numbers of packets that an SA may send: with 32 bits all numbers, with 64 bits as many as keep the
// IVs of two runs apart.
const (
	maxPackets    = 1<<32 - 1
	maxPacketsESN = 1 << 40
)

func parseArgs(args graph.Args) (*config, error) {
	s, r := arguments.Read(args)
	cfg := &config{settings: s}
	r.Func("out", func(v string) (err error) { cfg.sends, err = parseSAs(v, true); return err })
	r.Func("in", func(v string) (err error) { cfg.takes, err = parseSAs(v, false); return err })
	if cfg.window%64 != 0 {
		r.Failf("window=%d: want a multiple of 64", cfg.window)
	}
	cfg.mss = cfg.MSS.Within(cfg.inner())
	most := uint64(maxPackets)
	if cfg.esn {
		most = maxPacketsESN
	}
	cfg.lifetime = cmp.Or(cfg.lifetime, most)
	switch {
	case cfg.lifetime > most:
		r.Failf("lifetime=%d: with esn=%s an SA sends at most %d packets", cfg.lifetime, map[bool]string{true: "on", false: "off"}[cfg.esn], most)
	case len(cfg.sends)+len(cfg.takes) == 0:
		r.Failf("no SA given: want out=SPI@DESTINATION or in=SPI@SOURCE, and keys=FILE")
	case cfg.keys == "":
		r.Failf("keys= is missing: the file that has the SAs' keys")
	case len(cfg.sends)+len(cfg.takes) > MaxSAs:
		r.Failf("at most %d SAs", MaxSAs)
	case cfg.tunnel && (!cfg.local.IsValid() || !cfg.remote.IsValid() || cfg.local.Is4() != cfg.remote.Is4()):
		r.Failf("mode=tunnel: want local= and remote=, both IPv4 or both IPv6")
	case !cfg.tunnel && (cfg.local.IsValid() || cfg.remote.IsValid()):
		r.Failf("local= and remote= are of mode=tunnel")
	}
	return cfg, r.Err()
}

func parseSAs(v string, prefix bool) ([]selected, error) {
	var all []selected
	for x := range arg.Items(v, "+") {
		number, at, with := strings.Cut(x, "@")
		spi, err := parseSPI(number)
		if err != nil {
			return nil, err
		}
		s := selected{spi: spi}
		if with {
			if s.at, err = parsePrefix(at); err != nil {
				return nil, err
			}
		} else if prefix {
			return nil, fmt.Errorf("want SPI@DESTINATION, such as 0x%x@10.0.2.0/24", spi)
		}
		if slices.ContainsFunc(all, func(o selected) bool { return o.spi == spi && !prefix }) {
			return nil, fmt.Errorf("0x%x is named twice", spi)
		}
		if prefix && slices.ContainsFunc(all, func(o selected) bool { return o.at == s.at }) {
			return nil, fmt.Errorf("%v has two SAs", s.at)
		}
		all = append(all, s)
	}
	return all, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("%q is neither an address nor a prefix such as 10.0.2.0/24", s)
	}
	return p.Masked(), nil
}

// install finds or makes the SAs of cfg.
func (cfg *config) install(st *store) error {
	keys, err := readKeys(cfg.keys)
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	find := func(d direction, spi uint32) (*sa, error) {
		k, ok := keys[spi]
		if !ok {
			return nil, fmt.Errorf("%v=0x%x: %s has no key for it", d, spi, cfg.keys)
		}
		s, err := st.get(d, spi, k, cfg)
		if err == nil && (s.esn != cfg.esn || s.win.size != uint64(cfg.window)) {
			err = errors.New("esn= and window= are for the life of an SA: give it a new SPI and key, or start anew")
		}
		return s, err
	}
	for _, x := range cfg.sends {
		s, err := find(outbound, x.spi)
		if err != nil {
			return err
		}
		cfg.out.Insert(x.at, s)
	}
	cfg.in = map[uint32]*inSA{}
	for _, x := range cfg.takes {
		s, err := find(inbound, x.spi)
		if err != nil {
			return err
		}
		cfg.in[x.spi] = &inSA{s, x.at}
		if x.at.IsValid() {
			cfg.covered.Insert(x.at, struct{}{})
			continue
		}
		cfg.covered.Insert(netip.PrefixFrom(netip.IPv4Unspecified(), 0), struct{}{})
		cfg.covered.Insert(netip.PrefixFrom(netip.IPv6Unspecified(), 0), struct{}{})
	}
	return nil
}

func newApp(env graph.Env, args graph.Args) (graph.App, error) {
	cfg, err := parseArgs(args)
	if err != nil {
		return nil, fmt.Errorf("aead: %w", err)
	}
	st := env.Share(func() any { return openStore(env, cfg.keep) }).(*store)
	err = st.err
	if err == nil {
		err = cfg.install(st)
	}
	if err != nil {
		return nil, fmt.Errorf("aead: %w", err)
	}
	for range startPatience {
		if st.ready(cfg.lifetime) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return &App{store: st, cfg: cfg}, nil
}

// startPatience is for how many milliseconds a start waits for the journal, so that no packet is dropped for it.
const startPatience = 200

// Takes implements graph.Reconfigurer: all valid arguments can be taken without losing state.
func (a *App) Takes(graph.Args) bool { return true }

// Reconfigure implements graph.Reconfigurer. SAs that stay continue with their numbers and windows.
func (a *App) Reconfigure(args graph.Args) error {
	cfg, err := parseArgs(args)
	if err == nil && cfg.keep != a.cfg.keep {
		err = errors.New("keep= is for the life of the process: start anew, with new keys")
	}
	if err == nil {
		err = cfg.install(a.store)
	}
	if err != nil {
		return fmt.Errorf("aead: %w", err)
	}
	a.cfg = cfg
	a.dst, a.sa, a.last = netip.Addr{}, nil, nil
	return nil
}

// Wants implements graph.Wanter: the app wants all frames, and none may cross without it.
func (a *App) Wants() port.Filter { return port.Filter{All: true, Closed: true} }

// State is what Report shows of an SA.
type State struct {
	SPI       string `json:"spi"`
	Direction string `json:"direction"`
	Selector  string `json:"selector"`
	Sequence  uint64 `json:"sequence"` // the last sent, or the highest received
	Packets   uint64 `json:"packets"`  // in this process
	Bytes     uint64 `json:"bytes"`
	Replayed  uint64 `json:"replayed,omitempty"`
	Forged    uint64 `json:"forged,omitempty"`
}

// Report implements graph.Reporter: it shows the state of each SA.
func (a *App) Report() any {
	all := []State{}
	add := func(s *sa, at netip.Prefix) {
		s.own()
		defer s.release()
		x := State{fmt.Sprintf("0x%x", s.spi), s.dir.String(), "any", s.seq, s.packets, s.bytes, s.replayed, s.forged}
		if at.IsValid() {
			x.Selector = at.String()
		}
		if s.dir == inbound {
			x.Sequence = s.win.top
		}
		all = append(all, x)
	}
	for _, x := range a.cfg.sends {
		if s, ok := a.cfg.out.Get(x.at); ok {
			add(s, x.at)
		}
	}
	for _, x := range a.cfg.takes {
		add(a.cfg.in[x.spi].sa, x.at)
	}
	return all
}
