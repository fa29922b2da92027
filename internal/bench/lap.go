package bench

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/nf/hdr"
)

// stream is one direction of a reliable connection, as its frames name it.
type stream struct {
	client, server netip.Addr
	qpn            uint32 // of the receiver
}

func (s stream) compare(o stream) int {
	return cmp.Or(s.client.Compare(o.client), s.server.Compare(o.server), cmp.Compare(s.qpn, o.qpn))
}

// course is what a stream carried.
type course struct {
	ops   map[uint32]hdr.Opcode // of each PSN
	first uint32                // PSN
	span  uint32                // PSNs from the first to behind the last
}

func (c *course) add(psn uint32, op hdr.Opcode) {
	if c.ops == nil {
		c.ops, c.first = map[uint32]hdr.Opcode{}, psn
	}
	c.ops[psn] = op
	c.span = max(c.span, (psn-c.first+1)&hdr.PSNMask)
}

// answered reports whether the responses r fit the requests c: the atomics and
// READs of one are those of the other. Responses to what was asked before the
// recording begin r.
func (c *course) answered(r *course) bool {
	for psn, op := range r.ops {
		req, ok := c.ops[psn]
		if hdr.PSNDiff(psn, c.first) < 0 {
			continue
		}
		if !ok || (op == hdr.AtomicAck) != req.Has(hdr.IsAtomic) || op.Has(hdr.IsReadResp) != req.Has(hdr.IsRead) {
			return false
		}
	}
	return true
}

// laps is the mix as a loop without a seam: in each lap every connection goes
// on with the PSNs where it was. Requests that the recording leaves unanswered
// are left out. The map has every stream of responses with its requests.
func (m *mix) laps() ([]blast.Frame, map[stream]stream, error) {
	requests, responses := map[stream]*course{}, map[stream]*course{}
	list := m.list()
	each := func(do func(b []byte, f *hdr.Frame, s stream, response bool)) {
		for _, b := range list {
			var f hdr.Frame
			if hdr.Parse(b, &f) != hdr.IsRoCE || f.Op.Transport() != hdr.RC || f.Net != hdr.NetIPv4 {
				continue
			}
			ip, response := f.IPv4Of(b), f.Op.Has(hdr.IsResponse)
			s := stream{ip.Src(), ip.Dst(), f.BTHOf(b).DestQP()}
			if response {
				s.client, s.server = s.server, s.client
			}
			do(b, &f, s, response)
		}
	}
	each(func(b []byte, f *hdr.Frame, s stream, response bool) {
		of := requests
		if response {
			of = responses
		}
		if of[s] == nil {
			of[s] = &course{}
		}
		of[s].add(f.BTHOf(b).PSN(), f.Op)
	})
	// The QPN of the other direction is in no frame: what was asked and what was
	// answered tells which two belong together. Where several fit alike, it does
	// not matter which.
	steps := map[stream]uint32{} // of requests
	pairs := map[stream]stream{} // of responses, to their requests
	for most := 1; len(pairs) < len(responses); {
		before := len(pairs)
		for _, s := range slices.SortedFunc(maps.Keys(responses), stream.compare) {
			r := responses[s]
			if _, ok := pairs[s]; ok {
				continue
			}
			var fit []stream
			for q, c := range requests {
				if _, taken := steps[q]; !taken && q.client == s.client && q.server == s.server && c.answered(r) {
					fit = append(fit, q)
				}
			}
			if len(fit) == 0 {
				return nil, nil, fmt.Errorf("responses to QP %d of %v answer no requests", s.qpn, s.client)
			}
			if len(fit) <= most {
				q := slices.MinFunc(fit, stream.compare)
				pairs[s], steps[q] = q, (r.first+r.span-requests[q].first)&hdr.PSNMask
				most = 1
			}
		}
		if len(pairs) == before {
			most++
		}
	}
	var frames []blast.Frame
	each(func(b []byte, f *hdr.Frame, s stream, response bool) {
		if response {
			s = pairs[s]
		}
		step := steps[s]
		if at := (f.BTHOf(b).PSN() - requests[s].first) & hdr.PSNMask; at < step {
			frames = append(frames, blast.Frame{Bytes: b, Step: step})
		}
	})
	return frames, pairs, nil
}
