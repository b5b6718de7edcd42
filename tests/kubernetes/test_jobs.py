def test_x(job, tiny):
    j = job("four", "--nodes", "4", program=["train", *tiny, "--max-steps", "10"])
    j.wait_for("Complete")
    print(j.story())
