package tunnel

import (
	"testing"
	"time"
)

// One side gets another key while a connection is open, and the other side hears of
// it a little later, as the exchange between them takes: the connection goes on, in
// whichever order the two take it.
func TestAnotherKeyKeepsConnections(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		first func(w *world) [2]*board
	}{
		{"our own first", func(w *world) [2]*board { return [2]*board{w.a, w.b} }},
		{"the peer's first", func(w *world) [2]*board { return [2]*board{w.b, w.a} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.apply(t)
			v := converse(t, w)
			for range 2 {
				private, public := newKeys(t)
				w.a.want.PrivateKey = private
				w.b.want.Peers = append([]Peer{}, w.b.want.Peers...)
				w.b.want.Peers[0].PublicKey = public
				for n, d := range tt.first(w) {
					if n > 0 {
						time.Sleep(50 * time.Millisecond) // the exchange
					}
					if err := d.Apply(t.Context(), d.want); err != nil {
						t.Fatal(err)
					}
				}
				// At worst a handshake is lost and WireGuard tries it again, after 5 s.
				t.Logf("goes on after %s", v.goesOn(10*time.Second))
			}
		})
	}
}
