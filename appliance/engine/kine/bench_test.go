package kine

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// benchWatches is about how many caches an API server keeps.
const benchWatches = 150

// BenchmarkWatched is from a write to its event at the one of 150 watches that wants it.
func BenchmarkWatched(b *testing.B) {
	each(b, func(b *testing.B, o *opened) {
		watch := o.Watch(b.Context(), "/registry/pods/", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
		<-watch
		for i := 0; b.Loop(); i++ {
			if _, err := o.create(b.Context(), fmt.Sprint("/registry/pods/", i), "x"); err != nil {
				b.Fatal(err)
			}
			for r := range watch {
				if len(r.Events) > 0 {
					break
				}
			}
		}
	})
}

// BenchmarkWrite is a write with 150 watches, eight writers at a time.
func BenchmarkWrite(b *testing.B) {
	each(b, func(b *testing.B, o *opened) {
		var n atomic.Int64
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := o.create(b.Context(), fmt.Sprint("/registry/pods/", n.Add(1)), "x"); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// each runs a benchmark on our datastore and on kine's own, with the CPU time of the
// whole process: server and client.
func each(b *testing.B, run func(*testing.B, *opened)) {
	for _, ours := range []bool{true, false} {
		b.Run(map[bool]string{true: "ours", false: "kine"}[ours], func(b *testing.B) {
			o := openStore(b, b.TempDir(), ours, config())
			for i := range benchWatches {
				ready := o.Watch(streamOf(b.Context(), i), fmt.Sprintf("/registry/%d/", i), clientv3.WithPrefix(), clientv3.WithRev(1),
					clientv3.WithPrevKV(), clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
				<-ready
			}
			before := cpu(b)
			run(b, o)
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
