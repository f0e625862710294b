package mdns

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"rivulet/fabric/netmon"
)

// Query multicasts a question on the LANs, repeats it after a pause, and calls got with each message received, until
// ctx ends.
func Query(ctx context.Context, lans netmon.LANs, question *dns.Msg, pause time.Duration, got func(from netip.Addr, m *dns.Msg)) error {
	e, err := open(lans)
	if err != nil {
		return err
	}
	defer e.close()
	send := func() (err error) {
		for _, lan := range lans {
			err = errors.Join(err, e.send(question, lan))
		}
		return err
	}
	if err := send(); err != nil {
		return err
	}
	packets := make(chan packet, 64)
	e.listen(ctx, packets)
	again := time.NewTimer(pause)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			send() //nolint:errcheck // it is only a repetition
		case p := <-packets:
			got(p.from, p.msg)
		}
	}
}
