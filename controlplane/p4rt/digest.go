package p4rt

import (
	"cmp"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"

	"github.com/quillon/quillon/nf/clock"
)

const (
	// maxList is the highest number of messages in a list if the controller has set no limit.
	maxList = 1024
	// maxCache is the highest number of messages of one digest that were sent and not acknowledged. More
	// messages are lost.
	maxCache = 1 << 16
)

// digest puts the messages of one digest into lists. A list has no message twice, and a message is not sent
// again before the list with it was acknowledged. A digest has no timer of its own: the caller passes the time,
// and learns from next when it has to call due.
type digest struct {
	id       uint32
	config   *p4v1.DigestEntry_Config
	buffer   []*p4v1.P4Data
	keys     []string
	buffered map[string]bool
	size     int        // of the buffer, in bytes
	first    clock.Time // when the first message of the buffer came
	cache    map[string]uint64
	sent     []sentList // oldest first
	last     uint64     // id of the last list
}

type sentList struct {
	id   uint64
	at   clock.Time
	keys []string
}

func newDigest(id uint32, c *p4v1.DigestEntry_Config) *digest {
	if c == nil {
		c = &p4v1.DigestEntry_Config{}
	}
	return &digest{id: id, config: c, buffered: map[string]bool{}, cache: map[string]uint64{}}
}

// add adds a message. It returns a list if one is due; lost says that there was no room for the message.
func (g *digest) add(now clock.Time, m *p4v1.P4Data) (list *p4v1.DigestList, lost bool) {
	g.expire(now)
	k, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	key := string(k)
	if _, known := g.cache[key]; known || g.buffered[key] {
		return nil, false
	}
	if len(g.cache)+len(g.buffer) >= maxCache {
		return nil, true
	}
	if len(g.buffer) == 0 {
		g.first = now
	}
	g.buffer, g.keys = append(g.buffer, m), append(g.keys, key)
	g.buffered[key] = true
	g.size += len(key) + 4 // tag and length
	return g.due(now), false
}

// due returns the list that has to be sent at time now, or nil if none is due.
func (g *digest) due(now clock.Time) *p4v1.DigestList {
	n := len(g.buffer)
	limit := int(g.config.GetMaxListSize())
	limit = cmp.Or(limit, maxList)
	if n == 0 || n < limit && g.size < maxAnswer && now.Sub(g.first) < clock.Duration(g.config.GetMaxTimeoutNs()) {
		return nil
	}
	g.last++
	l := &p4v1.DigestList{DigestId: g.id, ListId: g.last, Data: g.buffer, Timestamp: int64(now)}
	if g.config.GetAckTimeoutNs() > 0 {
		for _, k := range g.keys {
			g.cache[k] = g.last
		}
		g.sent = append(g.sent, sentList{g.last, now, g.keys})
	}
	g.empty()
	return l
}

func (g *digest) empty() {
	g.buffer, g.keys, g.size = nil, nil, 0
	clear(g.buffered)
}

// expire forgets lists that were not acknowledged in time.
func (g *digest) expire(now clock.Time) {
	for len(g.sent) > 0 && now.Sub(g.sent[0].at) >= clock.Duration(g.config.GetAckTimeoutNs()) {
		g.forget(g.sent[0])
		g.sent = g.sent[1:]
	}
}

func (g *digest) forget(l sentList) {
	for _, k := range l.keys {
		if g.cache[k] == l.id {
			delete(g.cache, k)
		}
	}
}

// ack forgets a list that the controller has acknowledged.
func (g *digest) ack(id uint64) {
	for n, l := range g.sent {
		if l.id == id {
			g.forget(l)
			g.sent = append(g.sent[:n:n], g.sent[n+1:]...)
			return
		}
	}
}

// next returns the time at which due has to be called.
func (g *digest) next() clock.Time {
	if len(g.buffer) == 0 {
		return clock.Never
	}
	return g.first.Add(clock.Duration(g.config.GetMaxTimeoutNs()))
}
