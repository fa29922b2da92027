package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/quillon/quillon/controlplane/ctl"
)

// Status is the state of a network as its leader has stored it.
type Status struct {
	ctl.Record
	Leader  string   `json:"leader,omitempty"`   // empty: nobody leads
	Standby []string `json:"stand_by,omitempty"` // controllers that would lead next
	Newest  int64    `json:"newest_revision"`    // 0: none is stored
}

// Save implements store.Term. It does not wait for etcd.
func (t *term) Save(r ctl.Record) error {
	r.Host, r.PID, r.Running = t.s.Who, os.Getpid(), false
	t.mu.Lock()
	t.next = &r
	t.mu.Unlock()
	t.wake()
	return nil
}

func (t *term) wake() {
	select {
	case t.more <- struct{}{}:
	default:
	}
}

// write stores the last record that Save got, until the term ends.
func (t *term) write() {
	defer close(t.done)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-t.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	var stored map[string]string
	var r *ctl.Record // to be stored; nil: there is nothing
	for ctx.Err() == nil {
		if r == nil {
			select {
			case <-t.more:
			case <-t.over:
				return
			}
		}
		t.mu.Lock()
		if t.next != nil {
			r, t.next = t.next, nil
		}
		ended := t.ended
		t.mu.Unlock()
		if r != nil {
			try, done := context.WithTimeout(ctx, attempt)
			err := t.store(try, &stored, *r)
			done()
			if err == nil {
				r = nil
			} else if !ended && ctx.Err() == nil {
				t.s.fails(err)
				stored = nil
				pause(ctx)
			}
		}
		if ended {
			return
		}
	}
}

// store stores what has changed since the last call. stored holds what etcd has; nil: that is unknown. The
// record is written last, so that the revision in it is the revision of all devices.
func (t *term) store(ctx context.Context, stored *map[string]string, r ctl.Record) error {
	if *stored == nil {
		*stored = map[string]string{}
		have, err := t.s.get(ctx, "status/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return err
		}
		for _, kv := range have.Kvs {
			(*stored)[strings.TrimPrefix(string(kv.Key), t.s.prefix)] = "" // what it is, is not known
		}
	}
	now := map[string]string{}
	var changes []clientv3.Op
	set := func(key string, v any) error {
		b, err := json.Marshal(v)
		now[key] = string(b)
		if (*stored)[key] != now[key] {
			changes = append(changes, clientv3.OpPut(t.s.prefix+key, now[key]))
		}
		return err
	}
	for _, d := range r.Devices {
		if err := set("status/device/"+d.Device, d); err != nil {
			return err
		}
	}
	for key := range *stored {
		if _, ok := now[key]; !ok && key != "status/record" {
			changes = append(changes, clientv3.OpDelete(t.s.prefix+key))
		}
	}
	r.Devices = nil
	if err := set("status/record", r); err != nil {
		return err
	}
	mine := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(t.key), "=", t.revision)}
	for part := range slices.Chunk(changes, 100) {
		ok, err := t.s.commit(ctx, mine, part...)
		if err != nil {
			return err
		}
		if !ok.Succeeded {
			t.lose()
			return errOver
		}
	}
	*stored = now
	return nil
}

// Status returns the state of the network at one moment.
func (s *Store) Status(ctx context.Context) (st Status, err error) {
	r, err := s.commit(ctx, nil, clientv3.OpGet(s.prefix+"head"),
		clientv3.OpGet(s.prefix+"leader/", oldestFirst...), clientv3.OpGet(s.prefix+"status/", clientv3.WithPrefix()))
	if err != nil {
		return st, err
	}
	one := func(i int) []*mvccpb.KeyValue { return r.Responses[i].GetResponseRange().Kvs }
	for _, kv := range one(0) {
		st.Newest, _ = strconv.ParseInt(string(kv.Value), 10, 64)
	}
	var devices []ctl.DeviceStatus
	for _, kv := range one(2) {
		var d ctl.DeviceStatus
		if string(kv.Key) == s.prefix+"status/record" {
			err = json.Unmarshal(kv.Value, &st.Record)
		} else if err = json.Unmarshal(kv.Value, &d); err == nil {
			devices = append(devices, d)
		}
		if err != nil {
			return st, fmt.Errorf("%s: %w: it was not written by quillon", kv.Key, err)
		}
	}
	st.Devices = devices
	for i, kv := range controllers(one(1)) {
		if i > 0 {
			st.Standby = append(st.Standby, string(kv.Value))
			continue
		}
		st.Leader = string(kv.Value)
		// What is stored may be the leader's before.
		st.Running = st.Election.Low == ctl.ElectionOf(0, kv.CreateRevision).Low
	}
	return st, nil
}
