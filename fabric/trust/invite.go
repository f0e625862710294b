package trust

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"rivulet/fabric/peer"
)

const (
	InviteLife = 10 * time.Minute
	// inviteMemory is how long an expired or used invite is stored, so that its user receives the reason of a refusal.
	inviteMemory = 24 * time.Hour
	// SecretLen is the length of an invite's secret, bytes.
	SecretLen = 16
)

// Refusal is why an invite is not valid.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// The reasons of a refused invite.
const (
	ErrInviteUnknown = Refusal("this cluster has made no such invite, or long ago")
	ErrInviteExpired = Refusal("the invite has expired")
	ErrInviteRevoked = Refusal("the invite was revoked")
	ErrInviteUsed    = Refusal("the invite was used already, by another cluster")
	ErrInviteSpent   = Refusal("the invite was used already, and what it made has ended since")
	ErrInviteOlder   = Refusal("the cluster was denied after the invite was made")
	ErrInviteJoin    = Refusal("it is a token to join this cluster: rivulet join TOKEN")
	ErrInvitePeer    = Refusal("it is an invite for a peer: rivulet peer --invite CODE")
)

// Refusals are all of them.
var Refusals = []Refusal{ErrInviteUnknown, ErrInviteExpired, ErrInviteRevoked, ErrInviteUsed, ErrInviteSpent, ErrInviteOlder, ErrInviteJoin, ErrInvitePeer}

// Invite is the public part of an invite.
type Invite struct {
	ID      string    `json:"id"` // identifies it, and does not permit its use
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`
	// Expired: its end was seen once. It stays expired, whatever the clock shows later.
	Expired bool      `json:"expired,omitempty"`
	Revoked bool      `json:"revoked,omitempty"`
	UsedBy  peer.ID   `json:"usedBy,omitempty"`
	UsedAt  time.Time `json:"usedAt,omitzero"`
	// Spent: the peer or node that it made has ended since.
	Spent bool `json:"spent,omitempty"`
	// Join: it makes a device a node of this cluster, and not a peer.
	Join bool `json:"join,omitempty"`
}

// State is its state in one word.
func (i Invite) State(now time.Time) string {
	switch {
	case i.Revoked:
		return "revoked"
	case i.Spent:
		return "ended"
	case i.UsedBy != "":
		return "used"
	case i.expired(now):
		return "expired"
	}
	return "open"
}

// A clock before the invite's creation counts as expired, too.
func (i Invite) expired(now time.Time) bool {
	return i.Expired || !now.Before(i.Expires) || now.Before(i.Made.Add(-time.Minute))
}

// entry is a stored invite: with a hash in place of the secret.
type entry struct {
	Invite
	Hash []byte `json:"hash"`
	// After is the Number of the last revocation before it was made.
	After uint64 `json:"after,omitempty"`
}

func hash(secret []byte) []byte {
	sum := sha256.Sum256(append([]byte("rivulet invite\x00"), secret...))
	return sum[:]
}

// NewInvite creates an invite, or with join a token for a node of this cluster. The secret is returned and not stored.
func (b *Store) NewInvite(now time.Time, life time.Duration, join bool) (Invite, []byte, error) {
	secret := make([]byte, SecretLen)
	rand.Read(secret)
	h := hash(secret)
	i := Invite{ID: hex.EncodeToString(h[:4]), Made: now, Expires: now.Add(life), Join: join}
	err := b.change(func(c *content) {
		c.Invites = slices.DeleteFunc(c.Invites, func(e entry) bool { return now.After(e.Expires.Add(inviteMemory)) })
		c.Invites = append(c.Invites, entry{i, h, c.Ends})
	})
	return i, secret, err
}

// Invites returns all stored ones, the oldest first.
func (b *Store) Invites() (out []Invite) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.c.Invites {
		out = append(out, e.Invite)
	}
	return out
}

// RevokeInvite revokes an invite and returns it. A used one cannot be brought again by its user; what it made stays.
func (b *Store) RevokeInvite(id string) (revoked Invite, err error) {
	err = b.change(func(c *content) {
		for i := range c.Invites {
			if x := &c.Invites[i]; x.ID == id {
				x.Revoked = true
				revoked = x.Invite
			}
		}
	})
	if revoked.ID == "" {
		return revoked, fmt.Errorf("there is no invite or token %q; see: rivulet invite list, rivulet token list", id)
	}
	return revoked, err
}

// Expire stores which invites have expired. Its caller calls it from time to time, since after a restart the clock may
// show an earlier time.
func (b *Store) Expire(now time.Time) error {
	return b.change(func(c *content) {
		for i := range c.Invites {
			if x := &c.Invites[i]; !now.Before(x.Expires) {
				x.Expired = true
			}
		}
	})
}

// Check returns why the cluster may not use an invite, a Refusal. It uses nothing up. The cluster that has used it may
// repeat that before it expires, since its answer may have been lost, as long as what it made has not ended. join is what
// the cluster wants to use it for.
func (b *Store) Check(secret []byte, by peer.ID, now time.Time, join bool) error {
	b.mu.Lock()
	_, err := b.c.usable(hash(secret), by, now, join)
	b.mu.Unlock()
	if errors.Is(err, ErrInviteExpired) {
		_ = b.Expire(now) // if it cannot be stored now, the next Expire does it
	}
	return err
}

// Redeem uses an invite for the cluster, once, or returns a Refusal as Check does.
func (b *Store) Redeem(secret []byte, by peer.ID, now time.Time, join bool) error {
	var refused error
	err := b.change(func(c *content) {
		e, why := c.usable(hash(secret), by, now, join)
		if refused = why; why == nil && e.UsedBy == "" {
			e.UsedBy, e.UsedAt = by, now
		}
	})
	return cmp.Or(refused, err)
}

func (c *content) usable(want []byte, by peer.ID, now time.Time, join bool) (*entry, error) {
	// The comparison is of hashes of 128 random bits: its timing reveals nothing useful.
	i := slices.IndexFunc(c.Invites, func(e entry) bool { return slices.Equal(e.Hash, want) })
	if i < 0 {
		return nil, ErrInviteUnknown
	}
	e := &c.Invites[i]
	denied := func(p Revocation) bool { return p.ID == by && p.Denied && p.Number > e.After }
	switch {
	case e.Join && !join:
		return nil, ErrInviteJoin
	case join && !e.Join:
		return nil, ErrInvitePeer
	case e.UsedBy != "" && e.UsedBy != by:
		return nil, ErrInviteUsed
	case e.Revoked:
		return nil, ErrInviteRevoked
	case e.Spent:
		return nil, ErrInviteSpent
	case e.expired(now):
		return nil, ErrInviteExpired
	case slices.ContainsFunc(c.Revocations, denied):
		return nil, ErrInviteOlder
	}
	return e, nil
}
