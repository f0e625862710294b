package endpoint

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"rivulet/appliance/api"
	"rivulet/fabric/cure"
)

const (
	// MaxAccesses bounds the scrapers with access.
	MaxAccesses = 32
	// maxCertificate bounds a client's certificate, bytes.
	maxCertificate = 4 << 10
	note           = "metrics"

	byToken, byCertificate = "token", "certificate"
)

// Store stores a note durably.
type Store interface {
	Note(name string) ([]byte, error) // nil if there is none
	PutNote(name string, blob []byte) error
	// CopyError returns why deleted data may return after damage.
	CopyError() error
}

// record is the stored access of one scraper.
type record struct {
	Name string    `json:"name"`
	By   string    `json:"by"`
	Hash []byte    `json:"hash"` // SHA-256 of the token, or of the certificate's public key
	Made time.Time `json:"made"`
}

// use is the last scrape by an access.
type use struct {
	at   time.Time
	from netip.Addr
}

// accesses is the list of scrapers with access.
type accesses struct {
	store Store
	mu    sync.Mutex
	all   []record
	used  map[string]use // by hash
	bad   error          // why nobody has access
}

func load(s Store) *accesses {
	a := &accesses{store: s, used: map[string]use{}}
	blob, err := s.Note(note)
	if err == nil && blob != nil {
		err = json.Unmarshal(blob, &a.all)
	}
	for _, r := range a.all {
		if len(r.Hash) != sha256.Size || r.By != byToken && r.By != byCertificate {
			err = errors.New("an access is incomplete")
		}
	}
	if err != nil {
		a.all, a.bad = nil, fmt.Errorf("who may read the metrics cannot be read (%w), so nobody may; restore a backup, or reset the device", err)
	}
	return a
}

// find returns the access of a token or key. It compares with each in constant time.
func (a *accesses) find(by string, secret []byte) (found record, ok bool) {
	hash := sha256.Sum256(secret)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.all {
		if subtle.ConstantTimeCompare(r.Hash, hash[:]) == 1 && r.By == by {
			found, ok = r, true
		}
	}
	return found, ok
}

func (a *accesses) note(r record, from netip.Addr, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used[string(r.Hash)] = use{now, from}
}

// add gives access, and returns the token if it is by token.
func (a *accesses) add(q api.MetricsRequest, now time.Time) (r record, token string, err error) {
	if e := validation.IsDNS1123Label(q.Name); len(e) > 0 {
		return r, "", cure.Errorf("%.80q cannot be the name of an access; use lower-case letters, digits and dashes: rivulet metrics grant prometheus", q.Name)
	}
	r = record{Name: q.Name, By: byToken, Made: now}
	secret := []byte(nil)
	if q.Certificate != nil {
		r.By = byCertificate
		if secret, err = publicKey(q.Certificate); err != nil {
			return r, "", err
		}
	} else {
		token = rand.Text()
		secret = []byte(token)
	}
	hash := sha256.Sum256(secret)
	r.Hash = hash[:]
	return r, token, a.change(func(all []record) ([]record, error) {
		for _, o := range all {
			if o.Name == r.Name {
				return nil, cure.Errorf("%s has access already; end that first: rivulet metrics revoke %s, or take another name", r.Name, r.Name)
			}
			if slices.Equal(o.Hash, r.Hash) {
				return nil, cure.Errorf("this key has access already, as %s; run the command again", o.Name)
			}
		}
		if len(all) >= MaxAccesses {
			return nil, cure.Errorf("%d scrapers have access, more may not; see: rivulet metrics list, and: rivulet metrics revoke NAME", len(all))
		}
		return append(all, r), nil
	})
}

func publicKey(der []byte) ([]byte, error) {
	if len(der) > maxCertificate {
		return nil, errors.New("the certificate is too long; are the command and the running rivulet of the same version?")
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("the certificate is unreadable: %w; are the command and the running rivulet of the same version?", err)
	}
	return cert.RawSubjectPublicKeyInfo, nil
}

// revoke ends an access. It also returns an error while the store's copy still has it, because a recovery from the copy
// would restore it.
func (a *accesses) revoke(name string) error {
	err := a.change(func(all []record) ([]record, error) {
		left := slices.DeleteFunc(slices.Clone(all), func(r record) bool { return r.Name == name })
		if len(left) == len(all) {
			return nil, cure.Errorf("%.80q has no access to the metrics; see: rivulet metrics list", name)
		}
		return left, nil
	})
	if err != nil {
		return err
	}
	return a.store.CopyError()
}

// change replaces all records by the result of f; nothing changes if that fails.
func (a *accesses) change(f func([]record) ([]record, error)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bad != nil {
		return a.bad
	}
	next, err := f(slices.Clone(a.all))
	if err != nil {
		return err
	}
	blob, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := a.store.PutNote(note, blob); err != nil {
		return err
	}
	a.all = next
	for hash := range a.used {
		if !slices.ContainsFunc(next, func(r record) bool { return string(r.Hash) == hash }) {
			delete(a.used, hash)
		}
	}
	return nil
}

// views are all accesses, the oldest first.
func (a *accesses) views() ([]api.MetricsAccess, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := []api.MetricsAccess{}
	for _, r := range a.all {
		out = append(out, a.view(r))
	}
	return out, a.bad
}

// view: mu is held.
func (a *accesses) view(r record) api.MetricsAccess {
	v := api.MetricsAccess{Name: r.Name, By: r.By, Made: r.Made}
	if u, ok := a.used[string(r.Hash)]; ok {
		v.Used, v.From = u.at, u.from.String()
	}
	return v
}
