package main

import (
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// source is the data source that a user chooses at the top of a dashboard.
var source = common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}

// query is one expression with the name of its series.
type query struct{ expr, legend string }

func (q query) target(instant bool) *prometheus.DataqueryBuilder {
	b := prometheus.NewDataqueryBuilder().Datasource(source).Expr(q.expr).LegendFormat(q.legend)
	if instant {
		return b.Instant()
	}
	return b.Range()
}

// graph is a panel of lines.
func graph(title, what, unit string, queries ...query) cog.Builder[dashboard.Panel] {
	p := timeseries.NewPanelBuilder().Title(title).Description(what).Unit(unit).Min(0).Height(8).Span(12).Datasource(source).FillOpacity(10).
		Legend(common.NewVizLegendOptionsBuilder().DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).ShowLegend(true))
	for i, q := range queries {
		p = p.WithTarget(q.target(false).RefId(string(rune('A' + i))))
	}
	return p
}

// number is a panel of one value; from red on it is bad, unless that is 0.
func number(title, what, unit string, q query, red float64) cog.Builder[dashboard.Panel] {
	steps := []dashboard.Threshold{{Color: "green"}}
	if red > 0 {
		steps = append(steps, dashboard.Threshold{Color: "red", Value: cog.ToPtr(red)})
	}
	return stat.NewPanelBuilder().Title(title).Description(what).Unit(unit).Height(4).Span(6).Datasource(source).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
		Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(steps)).
		WithTarget(q.target(true).RefId("A"))
}

// rows is a panel with a row for each series.
func rows(title, what string, expr string) cog.Builder[dashboard.Panel] {
	return table.NewPanelBuilder().Title(title).Description(what).Height(8).Span(12).Datasource(source).
		WithTarget(query{expr: expr}.target(true).Format(prometheus.PromQueryFormatTable).RefId("A"))
}

// board is a dashboard; with a device it shows the ones that are chosen at the top.
func board(uid, title, what string, device bool, panels ...cog.Builder[dashboard.Panel]) *dashboard.DashboardBuilder {
	b := dashboard.NewDashboardBuilder("Rivulet / "+title).Uid("rivulet-"+uid).Description(what).Tags([]string{"rivulet"}).Refresh("1m").Time("now-6h", "now").Timezone("browser").
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus"))
	if device {
		b = b.WithVariable(dashboard.NewQueryVariableBuilder("instance").Label("Device").Datasource(source).
			Query(dashboard.StringOrMap{String: cog.ToPtr("label_values(rivulet_build_info, instance)")}).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc).Multi(true).IncludeAll(true).AllValue(".*"))
	}
	for _, p := range panels {
		b = b.WithPanel(p)
	}
	return b
}
