package p4rt

import (
	"maps"
	"sync"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/clock"
)

// device is a Device with the state that the server keeps for it.
type device struct {
	id  uint64
	s   *Server
	dev Device

	// writing is locked by a Write, and read-locked by a Read while it gathers one message of its answer. An
	// answer that fits into one message therefore shows a Write completely or not at all.
	writing sync.RWMutex
	saved   Pipeline // saved and not yet committed: reads and writes are about it; nil: none
	// Cookies of the running pipeline and of the saved one; nil: it has none.
	cookie, savedCookie *p4v1.ForwardingPipelineConfig_Cookie
	// savedDigests are the configurations of the saved pipeline's digests, by digest id. They count once it runs.
	savedDigests map[uint32]*p4v1.DigestEntry_Config

	arbitration sync.Mutex // one claim at a time

	mu      sync.Mutex // held briefly; locked after writing
	roles   map[string]*role
	digests map[uint32]*digest
	timer   *time.Timer // for the digests
	stop    func()
	closed  bool
}

func newDevice(s *Server, id uint64, dev Device) *device {
	d := &device{id: id, s: s, dev: dev, roles: map[string]*role{}, digests: map[uint32]*digest{}}
	d.roles[""] = &role{streams: map[*stream]struct{}{}}
	return d
}

func (d *device) close() {
	d.stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.timer != nil {
		d.timer.Stop()
	}
}

// current returns the pipeline that requests are about. The caller holds writing.
func (d *device) current() Pipeline {
	if d.saved != nil {
		return d.saved
	}
	return d.dev.Pipeline()
}

// event handles an event of the device.
func (d *device) event(e Event) {
	st := &d.s.stats
	st.PacketInsLost.Add(e.PacketInsLost)
	st.DigestsLost.Add(e.DigestsLost)
	switch {
	case e.PacketIn != nil:
		m := &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Packet{Packet: e.PacketIn}}
		if d.toPrimaries(m, (*scope).packetIn) {
			st.PacketIns.Add(1)
		} else {
			st.PacketInsLost.Add(1)
		}
	case e.Digest != nil:
		st.Digests.Add(1)
		d.digest(e.DigestID, e.Digest)
	case len(e.Idle) > 0:
		d.idle(e.Idle)
	}
}

// toPrimaries sends a message to the primaries of all roles for which may is true. It reports whether at least
// one got it.
func (d *device) toPrimaries(m *p4v1.StreamMessageResponse, may func(*scope) bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.toPrimariesLocked(m, may)
}

func (d *device) toPrimariesLocked(m *p4v1.StreamMessageResponse, may func(*scope) bool) bool {
	sent := false
	for _, r := range d.roles {
		if r.primary != nil && may(r.scope) {
			sent = r.primary.send(m) || sent
		}
	}
	return sent
}

// idle reports entries whose idle timeout has passed to the primaries that may write them.
func (d *device) idle(entries []*p4v1.TableEntry) {
	p := d.dev.Pipeline()
	if p == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.s.cfg.Clock.Now()
	sent := false
	for _, r := range d.roles {
		if r.primary == nil {
			continue
		}
		var mine []*p4v1.TableEntry
		for _, e := range entries {
			if r.scope.allows(p.Info(), p4info.EntryOf(e)) {
				mine = append(mine, e)
			}
		}
		if len(mine) == 0 {
			continue
		}
		m := &p4v1.IdleTimeoutNotification{TableEntry: mine, Timestamp: int64(now)}
		sent = r.primary.send(&p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_IdleTimeoutNotification{IdleTimeoutNotification: m}}) || sent
	}
	if sent {
		d.s.stats.IdleNotices.Add(uint64(len(entries)))
	} else {
		d.s.stats.IdleNoticesLost.Add(uint64(len(entries)))
	}
}

// digest adds one message of the device to its digest's list.
func (d *device) digest(id uint32, m *p4v1.P4Data) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.digests[id]
	if g == nil {
		d.s.stats.DigestsLost.Add(1)
		return
	}
	now := d.s.cfg.Clock.Now()
	list, lost := g.add(now, m)
	if lost {
		d.s.stats.DigestsLost.Add(1)
	}
	d.sendDigests(g, list)
	d.arm(now)
}

// sendDigests sends a list of digests to the primaries that may get it.
func (d *device) sendDigests(g *digest, list *p4v1.DigestList) {
	if list == nil {
		return
	}
	p := d.dev.Pipeline()
	m := &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Digest{Digest: list}}
	if p != nil && d.toPrimariesLocked(m, func(s *scope) bool { return s.allowsDigest(p.Info(), g.id) }) {
		d.s.stats.DigestLists.Add(1)
		return
	}
	d.s.stats.DigestsLost.Add(uint64(len(list.GetData())))
	g.ack(list.GetListId()) // no controller got the list: its messages may come again
}

// arm sets the timer to the time at which the next list is due.
func (d *device) arm(now clock.Time) {
	next := clock.Never
	for _, g := range d.digests {
		next = min(next, g.next())
	}
	if next == clock.Never || d.closed {
		return
	}
	wait := max(next.Sub(now), 100*time.Microsecond)
	if d.timer == nil {
		d.timer = time.AfterFunc(wait, d.tick)
		return
	}
	d.timer.Reset(wait)
}

// tick sends the lists that are due.
func (d *device) tick() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	now := d.s.cfg.Clock.Now()
	for _, g := range d.digests {
		d.sendDigests(g, g.due(now))
	}
	d.arm(now)
}

// digestAck handles the acknowledgement of a list of digests.
func (s *Server) digestAck(st *stream, a *p4v1.DigestListAck) {
	refuse := func(c codes.Code, text string) {
		st.send(streamError(c, text, &p4v1.StreamError{Details: &p4v1.StreamError_DigestListAck{
			DigestListAck: &p4v1.DigestListAckError{DigestListAck: a}}}))
	}
	d := st.dev
	if d == nil {
		refuse(codes.FailedPrecondition, "claim a role first")
		return
	}
	p := d.dev.Pipeline()
	if p == nil || p.Info().Digest(a.GetDigestId()) == nil {
		refuse(codes.InvalidArgument, "there is no such digest")
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if st.role.primary != st || !st.role.scope.allowsDigest(p.Info(), a.GetDigestId()) {
		refuse(codes.PermissionDenied, "not primary, or the digest is none of the role's")
		return
	}
	if g := d.digests[a.GetDigestId()]; g != nil {
		g.ack(a.GetListId())
	}
}

// packetOut hands a controller's packet to the device, and reports an error on the stream.
func (s *Server) packetOut(st *stream, m *p4v1.PacketOut) {
	s.stats.PacketOuts.Add(1)
	err := s.tryPacketOut(st, m)
	if err == nil {
		return
	}
	s.stats.PacketOutErrors.Add(1)
	x := statusOf(err)
	st.send(streamError(x.Code(), x.Message(), &p4v1.StreamError{Details: &p4v1.StreamError_PacketOut{
		PacketOut: &p4v1.PacketOutError{PacketOut: m}}}))
}

func (s *Server) tryPacketOut(st *stream, m *p4v1.PacketOut) error {
	d := st.dev
	if d == nil {
		return refusal(codes.PermissionDenied, "claim a role first")
	}
	d.mu.Lock()
	ok := st.role.primary == st && st.role.scope.packetOut()
	d.mu.Unlock()
	if !ok {
		return refusal(codes.PermissionDenied, "not primary, or the role sends no packets")
	}
	return d.dev.PacketOut(m)
}

// setDigests replaces the set of digests that the device sends. Digests that are in both sets keep their state.
func (d *device) setDigests(want map[uint32]*p4v1.DigestEntry_Config) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.digests {
		if want[id] == nil {
			delete(d.digests, id)
		}
	}
	for id, c := range want {
		if g := d.digests[id]; g == nil {
			d.digests[id] = newDigest(id, c)
		} else if !proto.Equal(g.config, c) {
			g.config = c
		}
	}
	d.arm(d.s.cfg.Clock.Now())
}

// currentDigests returns the configurations of the digests of the current pipeline, by digest id. The caller holds
// writing.
func (d *device) currentDigests() map[uint32]*p4v1.DigestEntry_Config {
	if d.saved != nil {
		return maps.Clone(d.savedDigests)
	}
	return d.digestConfigs()
}

// setCurrentDigests replaces the configurations of the digests of the current pipeline. The caller holds writing.
func (d *device) setCurrentDigests(want map[uint32]*p4v1.DigestEntry_Config) {
	if d.saved != nil {
		d.savedDigests = want
		return
	}
	d.setDigests(want)
}

// digestConfigs returns the configurations of the digests that the device sends, by digest id.
func (d *device) digestConfigs() map[uint32]*p4v1.DigestEntry_Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := map[uint32]*p4v1.DigestEntry_Config{}
	for id, g := range d.digests {
		m[id] = g.config
	}
	return m
}
