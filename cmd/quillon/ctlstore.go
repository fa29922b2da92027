package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/ctl/store"
	"github.com/quillon/quillon/controlplane/ctl/store/etcd"
	"github.com/quillon/quillon/nf/clock"
)

// storeFlags are the flags about the etcd that holds the intent and the state, and about the login there.
type storeFlags struct {
	url, ca, cert, key, login string
}

func (f *storeFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.url, "store", "", "etcd that has the intent and the state: etcd://HOST:PORT[,HOST:PORT...]/PREFIX (`URL`)")
	fs.StringVar(&f.ca, "store-ca", "", "TLS to etcd: `file` of certificates that its own must come from")
	fs.StringVar(&f.cert, "store-cert", "", "TLS to etcd: `file` with our own certificate")
	fs.StringVar(&f.key, "store-key", "", "TLS to etcd: `file` with its key")
	fs.StringVar(&f.login, "store-login", "", "`file` with user:password of etcd (default: what QUILLON_STORE_LOGIN holds)")
}

// intent checks the arguments: INTENT.yaml is wanted, and optional with --store.
func (f *storeFlags) intent(cmd *cobra.Command, args []string) error {
	if f.url != "" {
		return optional(0, "INTENT.yaml")(cmd, args)
	}
	return exactly("INTENT.yaml")(cmd, args)
}

// account returns etcd's user and password, both empty if no login is given.
func (f *storeFlags) account() (name, password string, err error) {
	from, text := "QUILLON_STORE_LOGIN", os.Getenv("QUILLON_STORE_LOGIN")
	if f.login != "" {
		st, err := os.Stat(f.login)
		if err != nil {
			return "", "", err
		}
		if st.Mode().Perm()&0o077 != 0 {
			return "", "", fmt.Errorf("%s has a password, and others may read it: chmod 600 %[1]s", f.login)
		}
		b, err := os.ReadFile(f.login)
		if err != nil {
			return "", "", err
		}
		from, text = f.login, strings.TrimSpace(string(b))
	} else if text == "" {
		return "", "", nil
	}
	name, password, _ = strings.Cut(text, ":")
	if name == "" || password == "" {
		return "", "", fmt.Errorf("%s: want user:password", from)
	}
	return name, password, nil
}

// open opens the etcd. who names this controller to others; tell gets messages about the connection.
func (f *storeFlags) open(ctx context.Context, c *ctlFlags, who string, tell func(string)) (*etcd.Store, error) {
	if f.url == "" {
		return nil, errors.New("--store is missing: want etcd://HOST:PORT/PREFIX")
	}
	if err := some("timeout", c.timeout); err != nil {
		return nil, err
	}
	name, password, err := f.account()
	if err != nil {
		return nil, err
	}
	return etcd.Open(ctx, etcd.Config{
		URL: f.url, Transport: ctl.Transport{CA: f.ca, Cert: f.cert, Key: f.key, Insecure: c.Insecure},
		User: name, Password: password, Who: who, Clock: clock.NewWall(), Patience: c.timeout, Tell: tell,
	})
}

// person names, for people, the user that stores a revision: user@host.
func person() string {
	host, _ := os.Hostname()
	if u, err := user.Current(); err == nil {
		return u.Username + "@" + host
	}
	return host
}

// put stores the intent of a file, or if old is not 0 the revision of that number again. onto is the revision that
// it should follow; below 0: the newest.
func (f *storeFlags) put(cmd *cobra.Command, c *ctlFlags, intent string, onto, old int64) error {
	var b *store.Bundle
	var err error
	if old == 0 {
		if b, _, err = store.Pack(intent); err != nil {
			return err
		}
	}
	s, err := f.open(cmd.Context(), c, person(), nil)
	if err != nil {
		return err
	}
	defer s.Close()
	if old != 0 {
		if b, err = s.Get(cmd.Context(), old); err != nil {
			return err
		}
	}
	in, stored, err := s.Put(cmd.Context(), b, onto, old)
	if errors.As(err, new(*etcd.Conflict)) {
		return failed{err}
	}
	if err != nil {
		return err
	}
	out := struct {
		etcd.Info
		Stored bool `json:"stored"`
	}{in, stored}
	return show(cmd, out, func(w io.Writer) {
		if stored {
			fmt.Fprintf(w, "revision %d is stored (%d devices)\n", in.Number, in.Devices)
		} else {
			fmt.Fprintf(w, "nothing to do: revision %d, by %s, is the same\n", in.Number, in.By)
		}
	})
}

// status prints how the devices of a network stand, and returns an error if not all are known to be at their
// intents.
func (f *storeFlags) status(cmd *cobra.Command, c *ctlFlags) error {
	s, err := f.open(cmd.Context(), c, "", nil)
	if err != nil {
		return err
	}
	defer s.Close()
	st, err := s.Status(cmd.Context())
	if err != nil {
		return err
	}
	if err := show(cmd, st, func(w io.Writer) { networkText(w, f.url, st) }); err != nil {
		return err
	}
	other := 0
	for _, d := range st.Devices {
		if !d.Aligned {
			other++
		}
	}
	switch {
	case st.Newest == 0:
		return failed{errors.New("no revision is stored: quillon ctl apply INTENT.yaml --store")}
	case st.Leader == "":
		return failed{errors.New("no controller leads: quillon ctl run --store")}
	case !st.Running:
		return failed{errors.New("the leader is new, and has not said yet how the devices stand")}
	case st.Revision != st.Newest:
		return failed{fmt.Errorf("the leader has not taken revision %d", st.Newest)}
	case other > 0:
		return failed{fmt.Errorf("not known to be at their intents: %s", count(other, "device"))}
	}
	return nil
}

func networkText(w io.Writer, url string, st etcd.Status) {
	leads := "nobody leads"
	if st.Leader != "" {
		leads = st.Leader + " leads"
	}
	if n := len(st.Standby); n > 0 {
		leads += fmt.Sprintf(", %d stand by (%s)", n, strings.Join(st.Standby, "; "))
	}
	fmt.Fprintf(w, "%s: revision %d is the newest; %s\n", url, st.Newest, leads)
	if st.Host == "" {
		return
	}
	fmt.Fprintf(w, "  revision %d, %s, election id %s, as %s knew at %s\n", st.Revision, st.Intent, st.Election, st.Host, dateTime(st.At))
	if st.Problem != "" {
		fmt.Fprintf(w, "  %s\n", st.Problem)
	}
	for _, d := range st.Devices {
		fmt.Fprintf(w, "  %s\n", deviceLine(d))
	}
}

// dateTime formats a time in the local time zone.
func dateTime(t clock.Time) string { return time.Unix(0, int64(t)).Format(time.DateTime) }

func newCtlHistoryCmd() *cobra.Command {
	var c ctlFlags
	var f storeFlags
	cmd := &cobra.Command{
		Use:   "history --store URL [REVISION]",
		Short: "Show the revisions of an intent in etcd",
		Long: `Lists the revisions of an intent that are in etcd, the newest last: who stored each
(quillon ctl apply --store), and when. With REVISION it prints the text of that one.
The last 100 are kept.`,
		Example: `  quillon ctl history --store etcd://127.0.0.1:2379/net1
  quillon ctl history --store etcd://127.0.0.1:2379/net1 5 >before.yaml`,
		Args: optional(0, "REVISION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			number := int64(0)
			if len(args) > 0 {
				var err error
				if number, err = strconv.ParseInt(args[0], 10, 64); err != nil || number < 1 {
					return fmt.Errorf("%q: want the number of a revision", args[0])
				}
			}
			s, err := f.open(cmd.Context(), &c, "", nil)
			if err != nil {
				return err
			}
			defer s.Close()
			if number > 0 {
				b, err := s.Get(cmd.Context(), number)
				if err != nil {
					return err
				}
				return show(cmd, map[string]string{"intent": b.Name, "text": string(b.Text)}, func(w io.Writer) { w.Write(b.Text) })
			}
			all, err := s.History(cmd.Context())
			if err != nil {
				return err
			}
			return show(cmd, list(all), func(w io.Writer) {
				for _, in := range all {
					if in.Problem != "" {
						fmt.Fprintf(w, "%d\t%s\n", in.Number, in.Problem)
						continue
					}
					like := ""
					if in.Like > 0 {
						like = fmt.Sprintf(", as revision %d", in.Like)
					}
					fmt.Fprintf(w, "%d\t%s\t%s\t%s (%d devices%s)\n", in.Number, dateTime(in.At), in.By, in.Intent, in.Devices, like)
				}
			})
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&c.Insecure, "insecure", false, "plain text to other machines, too")
	cmd.Flags().DurationVar(&c.timeout, "timeout", 10*time.Second, "how long etcd may take to answer")
	return cmd
}
