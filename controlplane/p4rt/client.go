package p4rt

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"slices"
	"strconv"
	"strings"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Client names a controller that is identified by its certificate, and says what it may do.
type Client struct {
	// Name is the certificate's common name, or one of its URIs, such as spiffe://site/controller. The whole
	// text must be equal. A Name with "://" is compared with URIs only, because a common name may be any text.
	Name string
	// Roles are the roles that the client may claim, write in and read in. "" is the default role, which may do
	// everything. Every other role must be in Config.Roles, because otherwise the client itself would say what
	// the role may do.
	Roles []string
	// MaxElection is the highest election id that the client may claim; nil: any.
	MaxElection *p4v1.Uint128
	// ReadOnly says that the client may claim a role only without an election id. It therefore never becomes
	// primary.
	ReadOnly bool
}

// ownersElection is the upper half of the lowest election id that only clients of the Unix socket may claim.
// Because of it the owner of the socket can always become primary, whatever ids other clients have claimed.
const ownersElection = 1 << 63

// trust says how a client was identified.
type trust int

const (
	nobody    trust = iota // by its address alone
	certified              // by a certificate that ClientCA vouches for
	owner                  // by the kernel: root, or the user who opened the socket
)

// caller is the client of a connection.
type caller struct {
	name  string // "uid 0", the certificate's name, or else the address
	trust trust
	may   *Client // nil: everything
}

// key is the same for all connections of one client. All clients that nothing identifies have one key together.
func (c *caller) key() string {
	if c == nil || c.trust == nobody {
		return ""
	}
	return c.name
}

// callerOf returns the client of a call, or nil if the call did not come through Listen.
func callerOf(ctx context.Context) *caller {
	if c := connOf(ctx); c != nil {
		return c.caller
	}
	return nil
}

// connOf returns the connection of a call, or nil if the call did not come through Listen.
func connOf(ctx context.Context) *conn {
	if p, ok := peer.FromContext(ctx); ok {
		c, _ := p.AuthInfo.(*conn)
		return c
	}
	return nil
}

// inRole checks that a client may do something in a role.
func (c *caller) inRole(name string) error {
	if c == nil || c.may == nil || slices.Contains(c.may.Roles, name) {
		return nil
	}
	list := make([]string, len(c.may.Roles))
	for n, r := range c.may.Roles {
		list[n] = roleText(r)
	}
	return status.Errorf(codes.PermissionDenied, "client %s may not act in %s: take %s", c.name, roleText(name), strings.Join(list, " or "))
}

func roleText(name string) string {
	if name == "" {
		return "the default role"
	}
	return fmt.Sprintf("role %q", name)
}

// mayWrite checks that a client may change something in a role.
func (c *caller) mayWrite(name string) error {
	if err := c.inRole(name); err != nil {
		return err
	}
	if c != nil && c.may != nil && c.may.ReadOnly {
		return status.Errorf(codes.PermissionDenied, "client %s may only read", c.name)
	}
	return nil
}

// mayClaim checks that a client may claim a role with an election id; nil means without one.
func (c *caller) mayClaim(name string, e *p4v1.Uint128) error {
	if e == nil || c == nil {
		return c.inRole(name)
	}
	if err := c.mayWrite(name); err != nil {
		return err
	}
	if c.may != nil && c.may.MaxElection != nil && less(c.may.MaxElection, e) {
		m := c.may.MaxElection
		return status.Errorf(codes.PermissionDenied, "client %s may claim election ids up to %d,%d, and not %d,%d", c.name, m.GetHigh(), m.GetLow(), e.GetHigh(), e.GetLow())
	}
	if c.trust != owner && e.GetHigh() >= ownersElection {
		return status.Errorf(codes.PermissionDenied, "election id %d,%d: those from %d,0 on are for clients of the server's Unix socket: take a lower one, after quillon ctl forget there where one of these was claimed", e.GetHigh(), e.GetLow(), uint64(ownersElection))
	}
	return nil
}

// certificate returns the client that a certificate belongs to. If list is empty, every client with a
// certificate of the authority may do everything.
func certificate(cert *x509.Certificate, list []Client) (*caller, error) {
	common := cert.Subject.CommonName
	names := []string{}
	if common != "" {
		names = append(names, common)
	}
	for _, u := range cert.URIs {
		names = append(names, u.String())
	}
	said := make([]string, len(names))
	for n := range names {
		said[n] = oneLine(names[n])
	}
	if len(list) == 0 {
		// Two certificates may have the same name, or none, and those of two authorities the same number.
		sum := sha256.Sum256(cert.Raw)
		return &caller{name: fmt.Sprintf("%s (certificate %x)", strings.Join(said, ", "), sum[:16]), trust: certified}, nil
	}
	if strings.Contains(common, "://") {
		names = names[1:]
	}
	for n := range list {
		if slices.Contains(names, list[n].Name) {
			return &caller{name: list[n].Name, trust: certified, may: &list[n]}, nil
		}
	}
	return nil, fmt.Errorf("no client is called %s: name it with --p4-client", strings.Join(said, " or "))
}

// oneLine returns a client's text in quotes if it has line breaks or unprintable characters, else as it is.
func oneLine(text string) string {
	if q := strconv.Quote(text); q[1:len(q)-1] != text {
		return q
	}
	return text
}
