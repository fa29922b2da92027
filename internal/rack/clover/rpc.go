package clover

import "github.com/quillon/quillon/rack/rnic"

// rpc is one channel to the metadata server: a queue pair for one request at a time, and the buffer that the
// server writes the reply into.
type rpc struct {
	qp    *rnic.QP
	req   [LargeMsgLen]byte
	reply []byte // MsgLen bytes of a region that the server may write
	addr  uint64
	rkey  uint32
	busy  bool
	sent  bool
	wr    rnic.SendWR
	sgl   [1][]byte
}

// post sends the first n bytes of r.req, whose content is filled in.
func (r *rpc) post(id uint64, t MsgType, n int, src, thread uint32) error {
	putHeader(r.req[:n], t, src, thread, r.addr, r.rkey)
	put64(r.reply, msgCRC, crcPending)
	r.sgl[0] = r.req[:n]
	r.wr = rnic.SendWR{ID: id, Op: rnic.OpSend, SGL: r.sgl[:], Signaled: true}
	if err := r.qp.PostSend(&r.wr); err != nil {
		return err
	}
	r.busy, r.sent = true, false
	return nil
}

// take reports whether the reply is there. If so, the channel is free, and the reply is valid until the next
// post.
func (r *rpc) take() bool {
	if !r.busy || !r.sent || u64(r.reply, msgCRC) != crcDone {
		return false
	}
	r.busy = false
	return true
}
