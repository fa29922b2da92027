package etcd

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/quillon/quillon/controlplane/ctl/store"
	"github.com/quillon/quillon/nf/clock"
)

// Info describes a revision of the intent.
type Info struct {
	Number  int64      `json:"revision"`
	At      clock.Time `json:"at"` // ns since the epoch
	By      string     `json:"by"`
	Intent  string     `json:"intent"`  // its file there
	Devices int        `json:"devices"` // of the intent
	Like    int64      `json:"like,omitempty"`
	Files   []fileInfo `json:"files"`             // the intent comes first
	Problem string     `json:"problem,omitempty"` // why it cannot be read
}

// fileInfo says under which keys the content of a file is stored.
type fileInfo struct {
	Path   string `json:"path"`
	Sum    string `json:"sum"`    // SHA-256 of the content
	Pieces int    `json:"pieces"` // of the compressed content
}

const (
	// piece is the largest part of a file in one request, in bytes. etcd accepts requests of 1.5 MiB.
	piece = 1 << 20
	// largest is the largest file, in bytes.
	largest = 256 << 20
	// kept is the number of revisions that the store keeps.
	kept = 100
)

func intentKey(n int64) string { return fmt.Sprintf("intent/%020d", n) }

func blobKey(sum string, i int) string { return fmt.Sprintf("blob/%s/%d", sum, i) }

// Conflict is the error of Put when another revision was stored meanwhile.
type Conflict struct {
	Onto   int64
	Newest Info
}

func (c *Conflict) Error() string {
	if c.Newest.Number == 0 {
		return fmt.Sprintf("there is no revision %d, and no other: apply --onto 0", c.Onto)
	}
	return fmt.Sprintf("revision %d is the newest, by %s, not %d: see what it changed (quillon ctl history %d), and apply --onto %[1]d", c.Newest.Number, c.Newest.By, c.Onto, c.Newest.Number)
}

// Put stores an intent as the next revision. onto is the revision that it should follow: if another one was
// stored meanwhile, the error is a *Conflict; below 0 it follows the newest. If the intent is the same as the
// newest revision, nothing is stored, and stored is false. like is the older revision that the intent repeats;
// 0: none.
func (s *Store) Put(ctx context.Context, b *store.Bundle, onto, like int64) (in Info, stored bool, err error) {
	intent, err := b.Intent()
	if err != nil {
		return in, false, err
	}
	for range 10 {
		number, mod, err := s.head(ctx)
		if err != nil {
			return in, false, err
		}
		var last Info
		if number > 0 {
			// What is damaged is no reason not to store another one.
			var f *failure
			if last, err = s.Info(ctx, number); errors.As(err, &f) {
				return in, false, err
			} else if err != nil {
				last = Info{Number: number, By: "unknown"}
			}
		}
		if onto >= 0 && onto != number {
			return in, false, &Conflict{onto, last}
		}
		in = Info{Number: number + 1, At: s.Clock.Now(), By: s.Who, Intent: b.Name, Devices: len(intent.Devices), Like: like}
		var mended bool
		if in.Files, mended, err = s.upload(ctx, b, last.Files); err != nil {
			return in, false, err
		}
		if !mended && slices.Equal(in.Files, last.Files) {
			return last, false, nil
		}
		text, err := json.Marshal(in)
		if err != nil {
			return in, false, err
		}
		// The comparison is also of the pieces: none that the newest revision names, or that were put since it was looked up, is deleted
		// but by who changes head, too (prune).
		r, err := s.commit(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.prefix+"head"), "=", mod)},
			clientv3.OpPut(s.prefix+intentKey(in.Number), string(text)), clientv3.OpPut(s.prefix+"head", strconv.FormatInt(in.Number, 10)))
		if err != nil {
			return in, false, fmt.Errorf("%w; quillon ctl history shows whether revision %d was stored", err, in.Number)
		}
		if r.Succeeded {
			if in.Number > kept {
				s.prune(ctx, in.Number, r.Header.Revision)
			}
			return in, true, nil
		}
	}
	return in, false, errors.New("others store revisions all the time: try again")
}

// upload stores the content of all files that the last revision does not have already. mended says that some
// content of the last revision was damaged, and was stored again.
func (s *Store) upload(ctx context.Context, b *store.Bundle, last []fileInfo) (all []fileInfo, mended bool, err error) {
	known := map[string]fileInfo{}
	for _, f := range last {
		known[f.Sum] = f
	}
	add := func(path string, content []byte) error {
		if len(content) > largest {
			return fmt.Errorf("%s has %d bytes, and a store takes %d: divide the network", path, len(content), largest)
		}
		f := fileInfo{Path: path, Sum: fmt.Sprintf("%x", sha256.Sum256(content))}
		if k, ok := known[f.Sum]; ok {
			_, err := s.download(ctx, k)
			if err == nil {
				f.Pieces = k.Pieces
				all = append(all, f)
				return nil
			}
			if errors.As(err, new(*failure)) {
				return err
			}
			mended = true
		}
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write(content); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
		for part := range slices.Chunk(packed.Bytes(), piece) {
			if _, err := s.commit(ctx, nil, clientv3.OpPut(s.prefix+blobKey(f.Sum, f.Pieces), string(part))); err != nil {
				return err
			}
			f.Pieces++
		}
		known[f.Sum] = f
		all = append(all, f)
		return nil
	}
	if err := add(b.Name, b.Text); err != nil {
		return nil, false, err
	}
	for _, path := range slices.Sorted(maps.Keys(b.Files)) {
		if err := add(path, b.Files[path]); err != nil {
			return nil, false, err
		}
	}
	return all, mended, nil
}

// prune deletes revisions that are too old, and content that no other revision uses. With each deletion it
// writes head, unchanged, so that a Put that runs at the same time, and relies on content that no revision
// names yet, starts again. What it cannot delete is left to the next prune.
func (s *Store) prune(ctx context.Context, newest, mod int64) {
	all, err := s.History(ctx)
	if err != nil {
		return
	}
	needed := map[string]bool{}
	var gone []clientv3.Op
	for _, in := range all {
		if in.Number <= newest-kept {
			gone = append(gone, clientv3.OpDelete(s.prefix+intentKey(in.Number)))
			continue
		}
		for _, f := range in.Files {
			needed[f.Sum] = true
		}
	}
	r, err := s.get(ctx, "blob/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return
	}
	for _, kv := range r.Kvs {
		sum, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), s.prefix+"blob/"), "/")
		if !needed[sum] {
			gone = append(gone, clientv3.OpDelete(string(kv.Key)))
		}
	}
	for part := range slices.Chunk(gone, 100) {
		head := clientv3.OpPut(s.prefix+"head", strconv.FormatInt(newest, 10))
		r, err := s.commit(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.prefix+"head"), "=", mod)}, append(slices.Clone(part), head)...)
		if err != nil || !r.Succeeded {
			return
		}
		mod = r.Header.Revision
	}
}

// Info returns the description of a revision.
func (s *Store) Info(ctx context.Context, number int64) (in Info, err error) {
	r, err := s.get(ctx, intentKey(number))
	if err != nil {
		return in, err
	}
	if len(r.Kvs) == 0 {
		return in, fmt.Errorf("there is no revision %d: quillon ctl history lists them", number)
	}
	return readInfo(r.Kvs[0])
}

// readInfo decodes the description of a revision.
func readInfo(kv *mvccpb.KeyValue) (in Info, err error) {
	if err = json.Unmarshal(kv.Value, &in); err == nil && len(in.Files) == 0 {
		err = errors.New("it has no files")
	}
	if err != nil {
		return Info{}, fmt.Errorf("%s: %w: it was not written by quillon", kv.Key, err)
	}
	return in, nil
}

// History returns the descriptions of all revisions, the oldest first.
func (s *Store) History(ctx context.Context) (all []Info, err error) {
	r, err := s.get(ctx, "intent/", clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	for _, kv := range r.Kvs {
		in, err := readInfo(kv)
		if err != nil {
			n, _ := strconv.ParseInt(strings.TrimPrefix(string(kv.Key), s.prefix+"intent/"), 10, 64)
			in = Info{Number: n, Problem: err.Error()}
		}
		all = append(all, in)
	}
	return all, nil
}

// Get returns the intent of a revision, with its files.
func (s *Store) Get(ctx context.Context, number int64) (*store.Bundle, error) {
	in, err := s.Info(ctx, number)
	if err != nil {
		return nil, err
	}
	b := &store.Bundle{Name: in.Intent, Files: map[string][]byte{}}
	for i, f := range in.Files {
		content, err := s.download(ctx, f)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			b.Text = content
		} else {
			b.Files[f.Path] = content
		}
	}
	return b, nil
}

func (s *Store) download(ctx context.Context, f fileInfo) ([]byte, error) {
	damaged := fmt.Errorf("%s: its content in the store is damaged: apply the intent again, or an older revision", f.Path)
	var packed bytes.Buffer
	for i := range f.Pieces {
		r, err := s.get(ctx, blobKey(f.Sum, i))
		if err != nil {
			return nil, err
		}
		if len(r.Kvs) == 0 {
			return nil, damaged
		}
		packed.Write(r.Kvs[0].Value)
	}
	z, err := gzip.NewReader(&packed)
	if err != nil {
		return nil, damaged
	}
	content, err := io.ReadAll(io.LimitReader(z, largest+1))
	if err != nil || fmt.Sprintf("%x", sha256.Sum256(content)) != f.Sum {
		return nil, damaged
	}
	return content, nil
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context) <-chan store.Revision {
	out := make(chan store.Revision, 1)
	s.sending.Lock()
	s.watched = true
	s.sending.Unlock()
	go func() {
		for ctx.Err() == nil {
			if err := s.follow(ctx, out); err != nil && ctx.Err() == nil {
				s.fails(err)
			}
			pause(ctx)
		}
	}()
	return out
}

// again is the interval at which head is read although etcd has reported no change, because an etcd that was
// restored to an older state reports nothing until its revision has become as high as before.
const again = 5 * time.Second

// follow sends each new revision, until the watch ends.
func (s *Store) follow(ctx context.Context, out chan store.Revision) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	var at int64 // etcd's revision
	read := func() error {
		r, err := s.get(ctx, "head")
		if err != nil {
			return err
		}
		at = r.Header.Revision
		for _, kv := range r.Kvs {
			if err := s.send(ctx, kv.Value, out); err != nil {
				return err
			}
		}
		return nil
	}
	if err := read(); err != nil {
		return err
	}
	look := time.NewTicker(again)
	defer look.Stop()
	watch := s.client.Watch(ctx, s.prefix+"head", clientv3.WithRev(at+1))
	for {
		select {
		case w, ok := <-watch:
			if err := w.Err(); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
				return s.explain(err)
			}
			if !ok || w.Canceled {
				return nil
			}
			// What was told may not be the newest any more.
			at = max(at, w.Header.Revision)
			if err := read(); err != nil {
				return err
			}
		case <-look.C:
			before := at
			if err := read(); err != nil || at < before {
				return err
			}
		}
	}
}

// sent identifies a revision that was sent.
type sent struct {
	number int64
	text   string // what describes it; empty: there is nothing
}

// send sends a revision. It returns errors of etcd; an error of the revision is sent with it.
func (s *Store) send(ctx context.Context, number []byte, out chan store.Revision) error {
	n, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		return fmt.Errorf("%s%s: %w: it was not written by quillon", s.prefix, "head", err)
	}
	is := sent{number: n}
	have, err := s.get(ctx, intentKey(n))
	if err != nil {
		return err
	}
	for _, kv := range have.Kvs {
		is.text = string(kv.Value)
	}
	s.sending.Lock()
	last := s.sent
	s.sending.Unlock()
	if is == last {
		return nil
	}
	r := store.Revision{Number: n}
	b, err := s.Get(ctx, n)
	if errors.As(err, new(*failure)) {
		return err
	}
	if err == nil {
		r.Intent, err = b.Intent()
	}
	r.Err = err
	store.Send(out, r)
	s.sending.Lock()
	defer s.sending.Unlock()
	s.sent = is
	close(s.newer)
	s.newer = make(chan struct{})
	return nil
}

// current waits until Watch has sent the revision that is the newest when current is called. A new leader with
// an older revision would undo what the leader before it has begun.
func (s *Store) current(ctx context.Context, l *lease) error {
	for {
		s.sending.Lock()
		watched, last, newer := s.watched, s.sent.number, s.newer
		s.sending.Unlock()
		n, _, err := s.head(ctx)
		if err != nil || !watched || n == 0 || last == n {
			return err
		}
		select {
		case <-newer:
		case <-l.over:
			return errOver
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
