// Command nopaths copies a processor profile (pprof's profile.proto, gzipped)
// from its standard input to its standard output and leaves only the last
// element of each absolute path in it: what is committed does not say where it
// was made. The compiler goes by the names of functions.
//
//	go tool pprof -proto -output /dev/stdout x.prof | nopaths > default.pgo
package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"google.golang.org/protobuf/encoding/protowire"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "nopaths:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	z, err := gzip.NewReader(in)
	if err != nil {
		return fmt.Errorf("not a gzipped profile: %w", err)
	}
	p, err := io.ReadAll(z)
	if err != nil {
		return err
	}
	if p, err = clean(p); err != nil {
		return err
	}
	w := gzip.NewWriter(out)
	_, err = w.Write(p)
	return errors.Join(err, w.Close())
}

// stringTable is the number of message Profile's field of strings.
const stringTable = 6

// clean is profile p, a message Profile, without absolute paths.
func clean(p []byte) ([]byte, error) {
	var out []byte
	for len(p) > 0 {
		num, typ, n := protowire.ConsumeField(p)
		if n < 0 {
			return nil, fmt.Errorf("not a profile: %w", protowire.ParseError(n))
		}
		field := p[:n]
		p = p[n:]
		if num == stringTable && typ == protowire.BytesType {
			_, _, head := protowire.ConsumeTag(field)
			if s, _ := protowire.ConsumeString(field[head:]); path.IsAbs(s) {
				field = protowire.AppendString(protowire.AppendTag(nil, num, typ), path.Base(s))
			}
		}
		out = append(out, field...)
	}
	return out, nil
}
