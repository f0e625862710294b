package apicount

import "testing"

const said = `# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="status",verb="PUT",version="v1"} 7
apiserver_request_total{code="409",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="status",verb="PUT",version="v1"} 2
apiserver_request_total{code="201",component="apiserver",dry_run="All",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 4
apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="serviceaccounts",scope="resource",subresource="token",verb="POST",version="v1"} 5
apiserver_request_total{code="201",component="apiserver",dry_run="",group="authorization.k8s.io",resource="subjectaccessreviews",scope="cluster",subresource="",verb="POST",version="v1"} 5
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="cluster",subresource="",verb="LIST",version="v1"} 9
apiserver_request_total{code="200",component="apiserver",dry_run="",group="coordination.k8s.io",resource="leases",scope="resource",subresource="",verb="PUT",version="v1"} 3
`

func TestOnlyWhatIsStoredCounts(t *testing.T) {
	parse := func(text string) (Counts, error) {
		families, err := parseFamilies([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return counts(families)
	}
	got, err := parse(said)
	if err != nil || len(got) != 2 || got["PUT pods/status"] != 9 || got["PUT leases"] != 3 {
		t.Fatalf("%v %v", got, err)
	}
	since := got.Since(Counts{"PUT pods/status": 4, "PUT leases": 3})
	if since.Sum() != 5 || got.Without("leases").Sum() != 9 || since.Each(2) != "PUT pods/status 2.50" {
		t.Errorf("%v %v %q", since, got.Without("leases"), since.Each(2))
	}
	if _, err := parse("up 1\n"); err == nil {
		t.Error("a server that says nothing has been asked nothing")
	}
}
