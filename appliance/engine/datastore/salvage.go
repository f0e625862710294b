package datastore

import (
	"context"
	"database/sql"
	"math"
)

// probes bounds the reads of a gap: each may cost a read of the disk.
const probes = 256

// span is a range of IDs, both ends included, that has not been read yet.
type span struct{ from, to int64 }

// readable calls f with every readable row. A damaged page ends a query, so a range is read from both ends, and the
// rest of it in halves. It returns only errors of f or ctx.
func readable(ctx context.Context, db *sql.DB, f func(row []any) error) error {
	todo := []span{{math.MinInt64, math.MaxInt64}}
	for n := 0; len(todo) > 0 && n < probes; n++ {
		s := todo[0]
		todo = todo[1:]
		last, whole, err := read(ctx, db, s, "ASC", f)
		if err != nil {
			return err
		}
		if whole {
			continue
		}
		if last != nil {
			s.from = *last + 1
		}
		first, _, err := read(ctx, db, s, "DESC", f)
		if err != nil {
			return err
		}
		if first != nil {
			s.to = *first - 1
		}
		// If no end was found, there are no rows far out: that many leaps no database has.
		s.from, s.to = max(s.from, 0), min(s.to, leap<<20)
		if s.from >= s.to {
			continue
		}
		middle := s.from + (s.to-s.from)/2
		todo = append(todo, span{s.from, middle}, span{middle + 1, s.to})
	}
	return nil
}

// read calls f with the rows of a range until one cannot be read. It returns the ID of the last readable one, and
// whether that was the end of the range.
func read(ctx context.Context, db *sql.DB, s span, order string, f func([]any) error) (last *int64, whole bool, err error) {
	rows, err := db.QueryContext(ctx, "SELECT "+columns+" FROM kine WHERE id BETWEEN ? AND ? ORDER BY id "+order, s.from, s.to)
	if err != nil {
		return nil, false, ctx.Err()
	}
	defer rows.Close()
	for rows.Next() {
		row := make([]any, 9)
		into := make([]any, 9)
		for i := range row {
			into[i] = &row[i]
		}
		if rows.Scan(into...) != nil {
			return last, false, ctx.Err()
		}
		id, ok := row[0].(int64)
		if !ok {
			return last, false, ctx.Err()
		}
		if err := f(row); err != nil {
			return last, false, err
		}
		last = &id
	}
	return last, rows.Err() == nil, ctx.Err()
}
