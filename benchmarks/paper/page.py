def write(out, ledger, plan):
    print("done")
