package mdns

import (
	"context"
	"time"

	"rivulet/fabric/netmon"
)

// lansAgain is the wait after a failure before the LANs are retried.
const lansAgain = 5 * time.Second

// onLANs runs work on the current LANs until ctx ends. Work returns when the LANs have changed; if it fails, trouble is
// logged and it is retried later. First, if not nil, receives the LANs before, even if there are none.
func (s *Source) onLANs(ctx context.Context, trouble string, first func(netmon.LANs), work func(context.Context, netmon.LANs, <-chan struct{}) error) {
	changed, stop := s.lans.Changed()
	defer stop()
	for ctx.Err() == nil {
		lans := s.lans.LANs()
		if first != nil {
			first(lans)
		}
		if len(lans) == 0 {
			wait(ctx, changed, 0)
			continue
		}
		if err := work(ctx, lans, changed); err != nil {
			s.log.Warn(trouble, "err", err)
			wait(ctx, changed, lansAgain)
		}
	}
}

// place is the LANs of a moment, and the packets received there.
type place struct {
	lans    netmon.LANs
	changed <-chan struct{} // closed when the LANs change
	ear     *ear
	packets <-chan packet
}

// hearing is work on LANs for which an ear is opened.
func hearing(work func(context.Context, place)) func(context.Context, netmon.LANs, <-chan struct{}) error {
	return func(ctx context.Context, lans netmon.LANs, changed <-chan struct{}) error {
		e, err := open(lans)
		if err != nil {
			return err
		}
		defer e.close()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		packets := make(chan packet, 64)
		e.listen(ctx, packets)
		work(ctx, place{lans: lans, changed: changed, ear: e, packets: packets})
		return nil
	}
}
