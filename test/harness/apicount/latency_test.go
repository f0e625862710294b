package apicount

import (
	"math"
	"testing"
)

const took = `# TYPE apiserver_request_duration_seconds histogram
apiserver_request_duration_seconds_bucket{resource="pods",scope="resource",subresource="status",verb="PUT",le="0.1"} 50
apiserver_request_duration_seconds_bucket{resource="pods",scope="resource",subresource="status",verb="PUT",le="0.2"} 90
apiserver_request_duration_seconds_bucket{resource="pods",scope="resource",subresource="status",verb="PUT",le="+Inf"} 100
apiserver_request_duration_seconds_bucket{resource="pods",scope="cluster",subresource="",verb="LIST",le="0.1"} 0
apiserver_request_duration_seconds_bucket{resource="pods",scope="cluster",subresource="",verb="LIST",le="+Inf"} 1
apiserver_request_duration_seconds_bucket{resource="pods",scope="cluster",subresource="",verb="WATCH",le="+Inf"} 9
apiserver_request_duration_seconds_bucket{resource="pods",scope="resource",subresource="exec",verb="GET",le="+Inf"} 9
apiserver_request_duration_seconds_bucket{resource="",scope="",subresource="",verb="GET",le="+Inf"} 9
`

func TestLatencies(t *testing.T) {
	families, err := parseFamilies([]byte(took))
	if err != nil {
		t.Fatal(err)
	}
	got, err := latencies(families)
	put, list := Call{"PUT", "pods/status", "resource"}, Call{"LIST", "pods", "cluster"}
	if err != nil || len(got) != 2 || got[put].Count() != 100 || got[list].Count() != 1 {
		t.Fatalf("%v %v", got, err)
	}
	if put.Limit() != 1 || list.Limit() != 30 || (Call{"LIST", "pods", "resource"}).Limit() != 1 {
		t.Error("limits of the SLO")
	}
	for q, want := range map[float64]float64{0.25: 0.05, 0.5: 0.1, 0.7: 0.15, 0.9: 0.2, 0.99: 0.2} {
		if got := got[put].Quantile(q); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	before := Latencies{put: {0.1: 50, 0.2: 50, math.Inf(1): 50}, list: got[list]}
	since := got.Since(before)
	if len(since) != 1 || since[put].Count() != 50 || math.Abs(since[put].Quantile(0.5)-0.1625) > 1e-9 {
		t.Errorf("%v", since)
	}
	if !math.IsNaN(Durations{}.Quantile(0.5)) {
		t.Error("no requests have a median")
	}
	if _, err := latencies(nil); err == nil {
		t.Error("a server that says nothing took no time")
	}
}
