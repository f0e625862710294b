package podview

import (
	"net"
	"testing"

	"github.com/miekg/dns"

	"rivulet/appliance/config/fixed"
)

// The cluster's DNS is there, though it is silent about all other names: so it is while the Internet is out.
func TestAnswersWithoutTheInternet(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if dns.IsSubDomain(fixed.ClusterDomain+".", q.Question[0].Name) {
			_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
		}
	})}
	go func() { _ = s.ActivateAndServe() }()
	defer conn.Close()
	if !answers(t.Context(), (&net.Dialer{}).DialContext, conn.LocalAddr().(*net.UDPAddr).AddrPort()) {
		t.Error("it is taken for gone")
	}
}
