package pairing

import (
	"testing"
)

// N+1 talks to us by N; N+1 and N+2 alone does not, and both say who has to upgrade.
func TestNewerVersions(t *testing.T) {
	for speaks, ok := range map[int]bool{0: true, 3: true, 4: false} {
		for _, begins := range []bool{true, false} {
			us, they := newNode(1), newNode(2)
			they.speaks = speaks
			from, to := us, they
			if begins {
				from, to = they, us
			}
			_, err := from.Exchange(t.Context(), wire(from, to))
			if (err == nil) != ok {
				t.Errorf("version %d, it begins %v: %v", speaks, begins, err)
			}
			if ok {
				agreed(t, us, they)
			} else if code := Code(err); code != "version" && code != "bad-message" || len(us.disk) != 0 {
				t.Errorf("version %d, it begins %v: %v, %d records", speaks, begins, err, len(us.disk))
			}
		}
	}
}

// A farewell that comes late does not end what has begun again since.
func TestLateFarewell(t *testing.T) {
	a, b := newNode(1), newNode(2)
	if _, err := a.Exchange(t.Context(), wire(a, b)); err != nil {
		t.Fatal(err)
	}
	end, _ := a.Farewell(b.self.ID, nil)
	if _, err := a.Exchange(t.Context(), wire(a, b)); err != nil { // they have thought better of it
		t.Fatal(err)
	}
	a.leave(b, end)
	if _, ok := b.disk[a.self.ID]; !ok {
		t.Error("an old farewell has ended a younger peering")
	}
	before := a.call(b.sender())
	end, _ = a.Farewell(b.self.ID, nil)
	late := a.call(b.sender())
	a.leave(b, end)
	if _, err := b.Receive(a.sender(), before); err != nil || len(b.disk) != 0 {
		t.Errorf("said before the farewell, and heard after it: %v, %d records", err, len(b.disk))
	}
	if _, ok := b.disk[a.self.ID]; ok {
		t.Error("the farewell was not heard")
	}
	if _, err := b.Receive(a.sender(), late); err != nil || len(b.disk) != 1 {
		t.Errorf("said after the farewell: %v", err)
	}
}
