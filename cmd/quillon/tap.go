package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/own"
	"github.com/quillon/quillon/nf/port/pcap"
)

// tapped is the result of a tap.
type tapped struct {
	At      string `json:"at"`
	File    string `json:"file"`
	Frames  int    `json:"frames"`
	Dropped uint64 `json:"dropped"`
}

func newTapCmd() *cobra.Command {
	var t target
	var out string
	var count int
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "tap APP.LINK -o FILE",
		Short: "Copy what crosses a link into a capture",
		Long: `Copies the frames that leave an output (clover-steer.b, or a.out for what port a
received) or enter an input (b.in) into FILE until interrupted, or -c frames have
been copied. A FILE named *.pcapng gets verdict and reason as comments, one named
*.gz or *.zst is compressed; "-" writes to the standard output. The workers never
wait: a frame that finds the buffer full is counted, and not copied.

Of an inline pair, what no app wants crosses in the kernel. While a tap copies, it
comes to the process, too, so that FILE has all frames. That is so where the graph
leads the frames of each port to its pair; elsewhere only what the apps want is copied.`,
		Example: "  quillon tap clover-steer.b -o steered.pcapng -c 1000\n  quillon tap a.out -o - | tshark -r -",
		Args:    exactly("APP.LINK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" {
				return errors.New("no file given: add -o FILE")
			}
			if count < 0 {
				return fmt.Errorf("-c %d: want 0 (no limit) or more", count)
			}
			if limit < 0 {
				return fmt.Errorf("--for %v: want 0 (no limit) or more", limit)
			}
			c, err := t.dial()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			if limit > 0 {
				ctx, stop = context.WithTimeout(ctx, limit)
				defer stop()
			}
			r := tapped{At: args[0], File: out}
			err = r.copy(ctx, cmd, c, count)
			if out == "-" || err != nil {
				return err
			}
			return show(cmd, r, func(w io.Writer) {
				fmt.Fprintf(w, "%d frames of %s in %s, %d not copied\n", r.Frames, r.At, r.File, r.Dropped)
			})
		},
	}
	t.add(cmd)
	cmd.Flags().StringVarP(&out, "output", "o", "", "capture to write, - for the standard output")
	cmd.Flags().IntVarP(&count, "count", "c", 0, "end after so many frames")
	cmd.Flags().DurationVar(&limit, "for", 0, "end after this `time`")
	return cmd
}

// errEnough ends a loop that has done all that was asked for. It is no error to the user.
var errEnough = errors.New("enough")

func (r *tapped) copy(ctx context.Context, cmd *cobra.Command, c *admin.Client, count int) (err error) {
	var w *pcap.Writer
	var file, through io.WriteCloser
	_, plain := pcap.Compress(nil, r.File)
	// The file is made only when the instance has agreed, so that a refusal leaves no file.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := func() {
		if file, err = create(cmd, r.File); err == nil {
			through, _ = pcap.Compress(file, r.File)
			w, err = newCapture(through, plain, r.At)
		}
		if err != nil {
			// Perhaps no frame ever comes, so the tap must not wait for one.
			cancel()
			return
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "copying %s\n", r.At)
	}
	var p pcap.Packet
	streamErr := c.Tap(ctx, r.At, begin, func(x admin.Captured) error {
		if err != nil {
			return err
		}
		p.Time, p.Data, p.OrigLen, p.Comments = x.At, x.Data, uint32(len(x.Data)), nil
		if strings.HasSuffix(plain, ".pcapng") {
			note := x.Verdict.String()
			if x.Reason != "" {
				note += ": " + x.Reason
			}
			p.Comments = [][]byte{[]byte(note)}
		}
		if err := w.Write(&p); err != nil {
			return err
		}
		r.Dropped = x.Dropped
		if r.Frames++; r.Frames == count {
			return errEnough
		}
		return nil
	})
	if errors.Is(streamErr, errEnough) {
		streamErr = nil
	}
	if w != nil {
		streamErr = errors.Join(streamErr, w.Flush(), through.Close())
	}
	if file != nil {
		streamErr = errors.Join(streamErr, file.Close())
	}
	return errors.Join(err, streamErr)
}

func create(cmd *cobra.Command, name string) (io.WriteCloser, error) {
	if name == "-" {
		return standardOutput{cmd.OutOrStdout()}, nil
	}
	// A capture holds what others say to each other, so a new file is only its owner's to read. The readers
	// of a file that exists stay, and a pipe belongs to its reader.
	i, err := os.Stat(name)
	if err == nil && !i.Mode().IsRegular() {
		return os.OpenFile(name, os.O_RDWR, 0)
	}
	file, err := own.Open(name, os.O_RDWR|os.O_CREATE, 0)
	if err != nil {
		return nil, err
	}
	if err := file.Truncate(0); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// standardOutput has a Close that does nothing.
type standardOutput struct{ io.Writer }

func (standardOutput) Close() error { return nil }

func newCapture(w io.Writer, name, at string) (*pcap.Writer, error) {
	format := pcap.Classic
	if strings.HasSuffix(name, ".pcapng") {
		format = pcap.NG
	}
	cw, err := pcap.NewWriter(w, pcap.NewHeader(format))
	if err == nil && format == pcap.NG {
		_, err = cw.AddInterface(pcap.Interface{Name: at, Link: pcap.LinkEthernet, Resol: 9})
	}
	return cw, err
}
