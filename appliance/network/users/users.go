// Package users gives people access from the LAN to this cluster's Kubernetes API and to those of its virtual clusters:
// `rivulet kubeconfig`, `rivulet vcluster kubeconfig`.
//
//	kubectl ── TLS for kubernetes.rivulet ──▶ control port ──▶ front ──▶ API server
//	   certificate of its own                 (by SNI)          │ user: by the certificate's key,
//	                                                            │ looked up for each request
//	                                                            ├ Impersonate-User: rivulet:user:NAME
//	                                                            └ or for a virtual cluster: a certificate issued
//	                                                              here, of user rivulet:user:NAME and its role's group
//
// Kubernetes cannot revoke a client certificate, so no certificate is issued that its API server trusts: the user's key
// is pinned here, as a peer's is, and front terminates TLS. When access ends, the next request is refused, open
// connections are closed, watches and exec included, and the role bindings are deleted.
//
// It reads the clock and the note of the store, and alone writes that note, ClusterRole rivulet:user and the bindings
// labelled rivulet.dev/kubeconfig. Restart: all state is in the note. Failure: while the API server is away requests
// get 503, and bindings are corrected later; without a readable note or a plausible clock nobody has access.
package users

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
)

const (
	// MaxUsers bounds the users with access to this cluster, MaxVirtual those of all virtual clusters, maxOfOne those
	// of one.
	MaxUsers, MaxVirtual, maxOfOne = 64, 512, 64
	// maxEnded bounds the records of ended accesses.
	maxEnded = 256
	// MaxLife is the longest duration of access.
	MaxLife = 366 * 24 * time.Hour
	// memory is how long an ended access is kept, so that its user receives the reason.
	memory = 30 * 24 * time.Hour
	note   = "kubeconfigs"
	// maxCertificate bounds a user's certificate, bytes.
	maxCertificate = 4 << 10
)

// Roles are the roles of users, from the least to the most rights.
var Roles = []string{"view", "edit", "admin"}

// record is the stored access of one user.
type record struct {
	User      string    `json:"user"`
	Key       []byte    `json:"key,omitempty"`   // SHA-256 of the public key; none before the link is used
	Token     []byte    `json:"token,omitempty"` // SHA-256 of the link's token
	Role      string    `json:"role"`
	Namespace string    `json:"namespace,omitempty"`
	VCluster  string    `json:"vcluster,omitempty"` // empty: this cluster
	ID        peer.ID   `json:"id,omitempty"`       // of the virtual cluster: a later one of the same name has another
	Link      time.Time `json:"link,omitzero"`      // until then a link gives the file, and nobody has access; zero: none, or used
	Made      time.Time `json:"made"`
	Expires   time.Time `json:"expires"`
	Revoked   time.Time `json:"revoked,omitzero"`
}

// state is the State of package api. A clock before the creation is as bad as one past the end.
func (r record) state(now time.Time) string {
	switch {
	case !r.Revoked.IsZero():
		return "revoked"
	case !now.Before(r.ended()) || now.Before(r.Made.Add(-time.Minute)):
		return "expired"
	case !r.Link.IsZero():
		return unused
	}
	return "active"
}

// unused is the state of a record whose link nobody has used: it admits nobody.
const unused = "unused"

// active reports whether the user is admitted.
func (r record) active(now time.Time) bool { return r.state(now) == "active" }

// over reports whether the record admits nobody any more.
func (r record) over(now time.Time) bool { return !r.active(now) && r.state(now) != unused }

// key is the hash of the public key, zero before the link is used.
func (r record) key() (key [sha256.Size]byte) {
	copy(key[:], r.Key)
	return key
}

// same reports whether two records have the same key or the same token.
func (r record) same(o record) bool {
	return len(r.Key) > 0 && slices.Equal(r.Key, o.Key) || len(r.Token) > 0 && slices.Equal(r.Token, o.Token)
}

// party is the key for counting its connections.
func (r record) party() string { return r.User + string(r.ID) }

// view is a record as shown to users.
func (r record) view(now time.Time) api.Kubeconfig {
	return api.Kubeconfig{User: r.User, Role: r.Role, Namespace: r.Namespace, VCluster: r.VCluster, Link: r.Link, Made: r.Made, Expires: r.Expires, Revoked: r.Revoked, State: r.state(now)}
}

// ended is when it ended, or will end.
func (r record) ended() time.Time {
	switch {
	case !r.Revoked.IsZero():
		return r.Revoked
	case !r.Link.IsZero():
		return r.Link
	}
	return r.Expires
}

// Store stores a note durably.
type Store interface {
	Note(name string) ([]byte, error) // nil if there is none
	PutNote(name string, blob []byte) error
	// CopyError returns why deleted data may return after damage.
	CopyError() error
}

// list is the list of users with access.
type list struct {
	store Store
	mu    sync.Mutex
	all   []record
	bad   error // why nobody has access
	used  map[[32]byte]time.Time
	conns map[net.Conn]record
}

func load(s Store) *list {
	l := &list{store: s, used: map[[32]byte]time.Time{}, conns: map[net.Conn]record{}}
	blob, err := s.Note(note)
	if err == nil && blob != nil {
		err = json.Unmarshal(blob, &l.all)
	}
	for _, r := range l.all {
		if len(r.Key) != sha256.Size && (len(r.Key) > 0 || len(r.Token) != sha256.Size || r.Link.IsZero()) {
			err = errors.New("a key or a token has the wrong length")
		}
	}
	if err != nil {
		l.all, l.bad = nil, fmt.Errorf("who has access from the LAN cannot be read (%w), so nobody has; restore a backup, or reset the device", err)
	}
	return l
}

func keyOf(c *x509.Certificate) [32]byte { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// find returns the record of a key.
func (l *list) find(key [32]byte) (record, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.all {
		if slices.Equal(r.Key, key[:]) {
			return r, true
		}
	}
	return record{}, false
}

// active are those with access.
func (l *list) active(now time.Time) (out []record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.all {
		if r.active(now) {
			out = append(out, r)
		}
	}
	return out
}

// change replaces all records by the result of f; nothing changes if that fails.
func (l *list) change(f func([]record) ([]record, error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bad != nil {
		return l.bad
	}
	next, err := f(slices.Clone(l.all))
	if err != nil {
		return err
	}
	blob, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := l.store.PutNote(note, blob); err != nil {
		return err
	}
	l.all = next
	return nil
}

// accept checks a request.
func accept(q api.KubeconfigRequest, now time.Time) (record, error) {
	if e := validation.IsDNS1123Label(q.User); len(e) > 0 {
		return record{}, fmt.Errorf("%.80q cannot be a user's name; use lower-case letters, digits and dashes: --user anna", q.User)
	}
	if !slices.Contains(Roles, q.Role) {
		return record{}, fmt.Errorf("there is no role %.80q; use --role %s", q.Role, strings.Join(Roles, ", --role "))
	}
	if q.For < time.Minute || q.For > MaxLife {
		return record{}, fmt.Errorf("access is given for 1 minute to %d days; use --for 30d", MaxLife/(24*time.Hour))
	}
	if q.Namespace != "" && q.VCluster != "" {
		return record{}, errors.New("a user of a virtual cluster has all of its namespaces; leave the namespace out")
	}
	if q.Link && q.VCluster == "" {
		return record{}, errors.New("a link gives access to virtual clusters only; name one")
	}
	if q.Namespace != "" && len(validation.IsDNS1123Label(q.Namespace)) > 0 {
		return record{}, fmt.Errorf("%.80q cannot be a namespace; see: rivulet kubectl get namespaces", q.Namespace)
	}
	r := record{User: q.User, Role: q.Role, Namespace: q.Namespace, VCluster: q.VCluster, Made: now, Expires: now.Add(q.For)}
	if q.Link {
		if len(q.Token) != sha256.Size || q.Certificate != nil {
			return record{}, errors.New("a link needs the hash of its token, and no certificate; are the command and the running rivulet of the same version?")
		}
		r.Token, r.Link = q.Token, now.Add(min(q.For, linkLife))
		return r, nil
	}
	if len(q.Certificate) > maxCertificate {
		return record{}, errors.New("the certificate is too long; are the command and the running rivulet of the same version?")
	}
	cert, err := x509.ParseCertificate(q.Certificate)
	if err != nil {
		return record{}, fmt.Errorf("the certificate is unreadable: %w; are the command and the running rivulet of the same version?", err)
	}
	key := keyOf(cert)
	r.Key = key[:]
	return r, nil
}

// add gives access.
func (l *list) add(r record, replace bool) error {
	return l.change(func(all []record) ([]record, error) {
		all = slices.DeleteFunc(all, func(o record) bool { return o.over(r.Made) && r.Made.Sub(o.ended()) > memory })
		count, of, others := 0, 0, 0
		for i, o := range all {
			switch {
			case o.same(r):
				return nil, errors.New("this key was used before; run the command again")
			case o.over(r.Made):
				others++
			case o.party() == r.party() && !replace:
				return nil, fmt.Errorf("%s has access already, until %s; --replace ends it and makes another, --user OTHER makes one beside it", r.User, o.Expires.UTC().Format(time.RFC3339))
			case o.party() == r.party():
				all[i].Revoked = r.Made
			case (o.ID == "") == (r.ID == ""):
				count++
				if o.ID == r.ID {
					of++
				}
			}
		}
		if r.ID == "" && count >= MaxUsers || r.ID != "" && (count >= MaxVirtual || of >= maxOfOne) {
			return nil, fmt.Errorf("%d users have access, %d of them to the same cluster, more may not; see: rivulet kubeconfig list, and: rivulet kubeconfig revoke USER", count, of)
		}
		for i := 0; others > maxEnded && i < len(all); { // removes the oldest ended ones
			if !all[i].over(r.Made) {
				i++
				continue
			}
			all, others = slices.Delete(all, i, i+1), others-1
		}
		return append(all, r), nil
	})
}

// revoke ends a user's access, to this cluster or a virtual one.
func (l *list) revoke(user, vcluster string, now time.Time) error {
	return l.end(now, func(r record) bool { return r.User == user && r.VCluster == vcluster },
		fmt.Errorf("%.80q has no access; see: rivulet kubeconfig list", user))
}

// end ends the access of the records for which of is true; if there are none, it returns none. It also returns an error
// while the store's copy still has them, because a recovery from the copy would restore the access.
func (l *list) end(now time.Time, of func(record) bool, none error) error {
	found := false
	err := l.change(func(all []record) ([]record, error) {
		for i := range all {
			if !all[i].over(now) && of(all[i]) {
				all[i].Revoked, found = now, true
			}
		}
		if !found {
			return nil, none
		}
		return all, nil
	})
	if err != nil {
		return err
	}
	return l.store.CopyError()
}

// drop deletes a record that was never usable.
func (l *list) drop(r record) error {
	return l.change(func(all []record) ([]record, error) {
		return slices.DeleteFunc(all, r.same), nil
	})
}

// views are all known records, the newest first.
func (l *list) views(now time.Time) []api.Kubeconfig {
	l.mu.Lock()
	defer l.mu.Unlock()
	open := map[[32]byte]int{}
	for _, r := range l.conns {
		open[r.key()]++
	}
	out := []api.Kubeconfig{}
	for _, r := range slices.Backward(l.all) {
		v := r.view(now)
		v.Connections, v.Used = open[r.key()], l.used[r.key()]
		out = append(out, v)
	}
	return out
}
