package testns

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"rivulet/test/harness/silence"
)

// Silence is told from a connection, and from a room in which nothing connects.
func TestApart(t *testing.T) {
	r, other := New(t), New(t)
	r.Cable("there", other, "here")
	r.Do(func() error { return Give("there", "192.0.2.1/24") })
	other.Do(func() error { return Give("here", "192.0.2.2/24") })
	other.Listen("192.0.2.2:80")
	other.Listen("192.0.2.2:81")
	// A neighbour that nobody has: what is sent there is lost without an answer.
	r.Do(func() error {
		l, err := netlink.LinkByName("there")
		if err != nil {
			return err
		}
		return netlink.NeighAdd(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: []byte{192, 0, 2, 9}, HardwareAddr: []byte{2, 0, 0, 0, 0, 9}})
	})
	open, silent, refused := Try{r, "192.0.2.1", "192.0.2.2:80"}, Try{r, "", "192.0.2.9:80"}, Try{r, "", "192.0.2.2:82"}

	begun := time.Now()
	r.ReachesNot("192.0.2.2:80", silent.To, refused.To)
	if took := time.Since(begun); took < time.Second {
		t.Errorf("the tries were given up after %v", took)
	}
	if reached, err := Apart(t.Context(), open, silent, Try{r, "", "192.0.2.2:81"}); err != nil || fmt.Sprint(reached) != "[192.0.2.2:81]" {
		t.Errorf("one of two connects: %v, %v", reached, err)
	}
	if reached, err := Apart(t.Context(), refused, silent); !errors.Is(err, silence.ErrNotJudged) {
		t.Errorf("a control that is refused: %v, %v", reached, err)
	}
	if _, err := Apart(t.Context(), open); err == nil {
		t.Error("nothing was tried, and nobody is told")
	}
}
